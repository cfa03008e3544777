import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { readJson } from '../../src/core/read-json.ts'
import { decodeValue, encodeValue } from '../../src/durable/values.ts'

describe('a recorded value', () => {
  it('a recorded value keeps its names after any other object was parsed', () => {
    // V8 returns { a: 0, '\\': 1 } for the second object after it has parsed the first.
    JSON.parse('{"a":0,"\\\\":1}')
    expect(readJson('{"a":0,"\\"":1}')).toEqual({ a: 0, '"': 1 })
    expect(decodeValue(encodeValue('it', { a: 0, '\n': 1 }))).toEqual({ a: 0, '\n': 1 })
  })

  it('a recorded value is read back unchanged', () => {
    const name = fc.string({ unit: fc.constantFrom('\\', '"', '\n', 'a', '~', '0', ':', '\ud800') })
    const names = fc.oneof(name, fc.constantFrom('__proto__', 'constructor', '0', '~005c'))
    const { value: values } = fc.letrec((tie) => ({
      value: fc.oneof({ maxDepth: 4 }, name, fc.integer(), tie('list'), tie('object')),
      list: fc.array(tie('value')),
      object: fc.dictionary(names, tie('value')),
    }))
    fc.assert(
      fc.property(values, fc.constantFrom('', ' ', '\n\t'), (value, indent) => {
        const text = JSON.stringify(value, null, indent)
        expect(JSON.stringify(readJson(text), null, indent)).toBe(text)
      }),
      { numRuns: 2000 },
    )
  })

  it('the last of several members with one name wins, in any spelling', () => {
    const value = readJson('{"a":0,"\\u0061":1,"b":[{"\\t":2,"\\u0009" : 3}],"__proto__":"\\""}')
    expect(JSON.stringify(value)).toBe('{"a":1,"b":[{"\\t":3}],"__proto__":"\\""}')
  })

  it.each([
    '{"\\n":1',
    '{"\\n":1,}',
    '{"\\x":1}',
    '"\\"',
    '{"a\\',
    '{"\\n":1,"b',
    '{"a\nb":1,"\\n":2}',
  ])('a recorded value that is not JSON throws: %s', (text) => {
    expect(() => readJson(text)).toThrow(SyntaxError)
  })

  it('a recorded value is read back at any depth that can be recorded', () => {
    let value: unknown = { 'a\nb': 1 }
    for (let depth = 0; depth < 3000; depth++) value = depth % 2 === 0 ? [value] : { '"': value }
    const bytes = encodeValue('it', value)
    expect(encodeValue('it', decodeValue(bytes))).toEqual(bytes)
  })

  it('a truncated value is refused in time that grows with its length', () => {
    expect(() => readJson(`{"${'\\"'.repeat(500_000)}`)).toThrow(SyntaxError)
  })

  it('a name and a text of a million escapes are read', () => {
    const long = '\n'.repeat(1_000_000)
    const value = { [long]: long }
    expect(readJson(JSON.stringify(value))).toEqual(value)
  })
})
