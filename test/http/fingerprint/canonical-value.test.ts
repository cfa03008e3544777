import fc from 'fast-check'
import { expect, it } from 'vitest'
import { canonicalJson } from '../../../src/http/fingerprint/canonical-json.ts'
import { canonicalValue } from '../../../src/http/fingerprint/canonical-value.ts'
import { valueToJson } from '../../../src/http/fingerprint/value-to-json.ts'

/** The canonical form through JSON text, which works for every value. */
function byText(value: unknown): string | undefined {
  const json = valueToJson(value)
  return json === undefined ? undefined : canonicalJson(json)
}

it('gives every JSON value the canonical form of its text', () => {
  fc.assert(
    fc.property(fc.jsonValue({ stringUnit: 'binary' }), (value) => {
      expect(canonicalValue(value)).toBe(byText(value))
    }),
  )
})

it('gives every other value the canonical form of its text, or none', () => {
  const anything = fc.anything({
    withBigInt: true,
    withBoxedValues: true,
    withDate: true,
    withMap: true,
    withNullPrototype: true,
    withObjectString: true,
    withSet: true,
    withSparseArray: true,
    withTypedArray: true,
    stringUnit: 'binary',
  })
  fc.assert(
    fc.property(anything, (value) => {
      expect(canonicalValue(value)).toBe(byText(value))
    }),
  )
})

it.each([
  ['half a surrogate pair', { '\ud800': '\udfff' }],
  ['names in the order of their code units', { b: 1, a: 2, '\u{1f600}': 3, '\ufb33': 4 }],
  [
    'minus zero and values that are not finite',
    [-0, Number.NaN, Number.POSITIVE_INFINITY, 1e21, 1e-7],
  ],
  ['members that JSON leaves out', { a: undefined, b: () => 1, c: Symbol('c'), d: [undefined] }],
  ['values with a toJSON method', { at: new Date(0), own: { toJSON: () => ({ z: 1 }) } }],
  ['a class without members', { opaque: new Map([['a', 1]]) }],
  ['a member called __proto__', JSON.parse('{"__proto__":{"a":1},"b":2}')],
  ['nesting beyond the walked depth', JSON.parse(`${'['.repeat(40)}1${']'.repeat(40)}`)],
])('gives the canonical form of the text for %s', (_, value: unknown) => {
  expect(canonicalValue(value)).toBe(byText(value))
})
