import canonicalize from 'canonicalize'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { readJson } from '../../../src/core/read-json.ts'
import { canonicalJson, canonicalMembers } from '../../../src/http/fingerprint/canonical-json.ts'
import { JSON_DEPTH_MAX } from '../../../src/protocol/limits.ts'

const MEBIBYTE = 1024 * 1024

describe('canonical JSON', () => {
  it('canonical JSON equals the output of RFC 8785 for any value', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 6 }), (value) => {
        expect(canonicalJson(JSON.stringify(value))).toBe(canonicalize(value))
        expect(canonicalJson(JSON.stringify(value, null, '\t'))).toBe(canonicalize(value))
      }),
      { numRuns: 1000 },
    )
  })

  it('canonical JSON does not depend on order, whitespace or escapes', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 4 }), fc.integer(), fc.integer(), (value, one, two) => {
        const first = canonicalJson(spell(value, one))
        expect(first).toBe(canonicalize(value))
        expect(canonicalJson(spell(value, two))).toBe(first)
      }),
      { numRuns: 1000 },
    )
  })

  it('canonical JSON is its own canonical form, and has the same meaning', () => {
    const string = fc.string({ unit: 'binary' })
    fc.assert(
      fc.property(fc.dictionary(string, fc.oneof(string, fc.double())), (value) => {
        const canonical = canonicalJson(JSON.stringify(value))!
        expect(canonicalJson(canonical)).toBe(canonical)
        expect(readJson(canonical)).toEqual(readJson(JSON.stringify(value)))
      }),
      { numRuns: 1000 },
    )
  })

  it('canonical JSON passes the sample of RFC 8785, but keeps digits that no double holds', () => {
    const text = String.raw`{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }`
    expect(canonicalJson(text)).toBe(
      '{"literals":[null,true,false],"numbers":[33333333333333329e-8,1e+30,4.5,0.002,1e-27],' +
        String.raw`"string":"€$\u000f\nA'B\"\\\\\"/"}`,
    )
  })

  it('canonical JSON sorts names by UTF-16 code units, as the sample of RFC 8785 does', () => {
    const names = ['\u20ac', '\r', '\ufb33', '1', '\ud83d\ude00', '\u0080', '\u00f6']
    const text = `{${names.map((name, index) => `${JSON.stringify(name)}:${index + 1}`).join()}}`
    const canonical = '{"\\r":2,"1":4,"\u0080":6,"\u00f6":7,"\u20ac":1,"\ud83d\ude00":5,"\ufb33":3}'
    expect(canonicalJson(text)).toBe(canonical)
  })

  it('canonical JSON sorts names by their decoded value, not by their spelling', () => {
    expect(canonicalJson(String.raw`{"\u0062":1,"a":2,"\"":3}`)).toBe(
      String.raw`{"\"":3,"a":2,"b":1}`,
    )
  })

  it('the last of several members with one name wins, as in parsers', () => {
    expect(canonicalJson('{"a":1,"b":{"x":1},"\\u0061":[2],"b":3}')).toBe('{"a":[2],"b":3}')
  })

  it('__proto__ and constructor are ordinary member names', () => {
    expect(canonicalJson('{"constructor":1,"__proto__":{"b":1,"a":2}}')).toBe(
      '{"__proto__":{"a":2,"b":1},"constructor":1}',
    )
    expect(canonicalJson('{"__proto__":1}')).not.toBe(canonicalJson('{}'))
  })

  it('half a surrogate pair differs from every other, in any spelling', () => {
    expect(canonicalJson('"\\uD800"')).toBe('"\\ud800"')
    expect(canonicalJson('"\ud800"')).toBe('"\\ud800"')
    expect(canonicalJson('{"\ud800":"\udbff"}')).toBe('{"\\ud800":"\\udbff"}')
    expect(canonicalJson('"\\ud83d\\ude00"')).toBe('"😀"')
    expect(canonicalJson('"\ufffd"')).toBe('"\ufffd"')
  })

  it.each([
    [' [ ] ', '[]'],
    [' { } ', '{}'],
    ['[[],[{}],[[1]]]', '[[],[{}],[[1]]]'],
    ['\t"a,b:{c}[d]"\n', '"a,b:{c}[d]"'],
    ['""', '""'],
    ['{"":""}', '{"":""}'],
    ['{"\\\\":"\\\\\\""}', '{"\\\\":"\\\\\\""}'],
    ['["\\\\","a","\\"","b"]', '["\\\\","a","\\"","b"]'],
    ['true', 'true'],
    [' null', 'null'],
    ['12', '12'],
  ])('the canonical form of %j is %j', (text, canonical) => {
    expect(canonicalJson(text)).toBe(canonical)
  })

  it.each([
    '',
    ' ',
    '{',
    '[1,]',
    '{"a":1,}',
    '01',
    '1.',
    '+1',
    'NaN',
    "'a'",
    '"\n"',
    '1 2',
    '\ufeff1',
  ])('%j has no canonical form, because it is not JSON', (text) => {
    expect(canonicalJson(text)).toBeUndefined()
    expect(canonicalMembers(text)).toBeUndefined()
  })

  it('parsing stops at a depth that is safe for the stack', () => {
    const nested = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth)
    expect(canonicalJson(nested(JSON_DEPTH_MAX))).toBe(nested(JSON_DEPTH_MAX))
    expect(canonicalJson(nested(JSON_DEPTH_MAX + 1))).toBeUndefined()
    expect(canonicalJson(`[${`${nested(JSON_DEPTH_MAX - 1)},`.repeat(9)}1]`)).toBeDefined()
    expect(canonicalJson(nested(MEBIBYTE / 2))).toBeUndefined()
    expect(canonicalJson('['.repeat(MEBIBYTE))).toBeUndefined()
    expect(canonicalJson('{"a":'.repeat(MEBIBYTE / 5))).toBeUndefined()
  })
})

describe('canonical numbers', () => {
  it.each([
    ['0000000000000000', '0'],
    ['8000000000000000', '0'],
    ['0000000000000001', '5e-324'],
    ['8000000000000001', '-5e-324'],
    ['7fefffffffffffff', '1.7976931348623157e+308'],
    ['ffefffffffffffff', '-1.7976931348623157e+308'],
    ['4340000000000000', '9007199254740992'],
    ['c340000000000000', '-9007199254740992'],
    ['4430000000000000', '295147905179352830000'],
    ['44b52d02c7e14af5', '9.999999999999997e+22'],
    ['44b52d02c7e14af6', '1e+23'],
    ['44b52d02c7e14af7', '1.0000000000000001e+23'],
    ['444b1ae4d6e2ef4e', '999999999999999700000'],
    ['444b1ae4d6e2ef4f', '999999999999999900000'],
    ['444b1ae4d6e2ef50', '1e+21'],
    ['3eb0c6f7a0b5ed8c', '9.999999999999997e-7'],
    ['3eb0c6f7a0b5ed8d', '0.000001'],
    ['41b3de4355555553', '333333333.3333332'],
    ['41b3de4355555554', '333333333.33333325'],
    ['41b3de4355555555', '333333333.3333333'],
    ['41b3de4355555556', '333333333.3333334'],
    ['41b3de4355555557', '333333333.33333343'],
    ['becbf647612f3696', '-0.0000033333333333333333'],
    ['43143ff3c1cb0959', '1424953923781206.2'],
  ])('writes the double %s of RFC 8785, appendix B, as %s', (bits, canonical) => {
    const double = Buffer.from(bits, 'hex').readDoubleBE()
    expect(canonicalJson(JSON.stringify(double))).toBe(canonical)
    expect(canonicalJson(canonical)).toBe(canonical)
  })

  it.each([
    ['1.0', '1'],
    ['1e0', '1'],
    ['10e-1', '1'],
    ['0.00001e5', '1'],
    ['-0', '0'],
    ['-0.0e-5', '0'],
    ['0e99999999999999999999', '0'],
    ['1E2', '100'],
    ['9007199254740993', '9007199254740993'],
    ['-9007199254740993.0', '-9007199254740993'],
    ['90071992547409930', '9007199254740993e1'],
    ['0.1000000000000000000001', '1000000000000000000001e-22'],
    ['1e400', '1e400'],
    ['10e399', '1e400'],
    ['-2e400', '-2e400'],
    ['1e-400', '1e-400'],
    ['1.2345e-320', '12345e-324'],
    ['1e999999999', '1e999999999'],
    ['1E+0000000000000000000005', '100000'],
  ])('writes the number %s as %s', (literal, canonical) => {
    expect(canonicalJson(literal)).toBe(canonical)
    expect(canonicalJson(canonical)).toBe(canonical)
  })

  it('canonical numbers are equal if and only if their exact values are', () => {
    const digits = fc.stringMatching(/^\d{1,30}$/)
    const written = fc.record({ whole: digits, part: digits, exponent: fc.nat(40) })
    const literals = fc
      .tuple(written, fc.boolean())
      .map(([{ whole, part, exponent }, negative]) => {
        const sign = negative ? '-' : ''
        return `${sign}${BigInt(whole)}.${part}e${exponent - 20}`
      })
    const same = literals.chain((literal) => fc.tuple(fc.constant(literal), respelt(literal)))
    const near = literals.map((literal): [string, string] => [literal, literal.replace('e', '1e')])
    fc.assert(
      fc.property(fc.oneof(fc.tuple(literals, literals), same, near), ([one, two]) => {
        const isEqual = canonicalJson(one) === canonicalJson(two)
        expect(isEqual).toBe(exactly(one) === exactly(two))
      }),
      { numRuns: 3000 },
    )
  })

  it('the time for canonical numbers grows only with their length', () => {
    const long = '7'.repeat(MEBIBYTE)
    expect(canonicalJson(long)).toBe(long)
    expect(canonicalJson(`0.${'0'.repeat(MEBIBYTE)}1e1048576`)).toBe('0.1')
    expect(canonicalJson(`1${'0'.repeat(MEBIBYTE)}`)).toBe('1e1048576')
    expect(canonicalJson(`1e${'9'.repeat(MEBIBYTE)}`)).toHaveLength(MEBIBYTE + 2)
    expect(canonicalJson(`[${'1e999999999,'.repeat(80_000)}1]`)).toHaveLength(80_000 * 12 + 3)
  })
})

describe('the members of an object', () => {
  it('members of an object are found by name, in canonical form', () => {
    const members = canonicalMembers('{"b":{"y":1,"x":[1.0]},"\\u0061":"\\u0062","a":2e0}')
    expect(members).toEqual(
      new Map([
        ['b', '{"x":[1],"y":1}'],
        ['a', '2'],
      ]),
    )
  })

  it.each(['[]', '1', '"a"', 'null', '[{"a":1}]'])('finds no members in %s', (text) => {
    expect(canonicalMembers(text)).toBeUndefined()
  })
})

/** Writes a value in one of many ways, chosen by a seed. */
function spell(value: fc.JsonValue, seed: number): string {
  let state = seed >>> 0
  const pick = (count: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * count)
  }
  const space = (): string => [' ', '\n\t', '', '', ''][pick(5)]!
  const unit = (code: number): string =>
    `\\u${code
      .toString(16)
      .padStart(4, '0')
      .replaceAll(/[a-f]/g, (hex) => (pick(2) ? hex : hex.toUpperCase()))}`
  const escaped = (text: string): string =>
    `"${text
      .split('')
      .map((character) => unit(character.charCodeAt(0)))
      .join('')}"`
  const string = (text: string): string => (pick(2) === 0 ? JSON.stringify(text) : escaped(text))
  const number = (text: string): string =>
    [text, text.replace('e', 'E'), text.includes('e') ? text : `${text}e0`][pick(3)]!
  const write = (inner: fc.JsonValue): string => {
    if (typeof inner === 'string') return string(inner)
    if (typeof inner === 'number') return number(JSON.stringify(inner))
    if (inner === null || typeof inner === 'boolean') return String(inner)
    if (Array.isArray(inner)) return `[${space()}${inner.map(spaced).join(',')}]`
    const members = Object.entries(inner).map(
      ([name, member]) => `${space()}${string(name)}${space()}:${spaced(member as fc.JsonValue)}`,
    )
    return `{${members.sort(() => pick(3) - 1).join(',')}${space()}}`
  }
  const spaced = (inner: fc.JsonValue): string => `${space()}${write(inner)}${space()}`
  return spaced(value)
}

/** Returns another spelling of the same number. */
function respelt(literal: string): fc.Arbitrary<string> {
  const [mantissa = '', exponent = ''] = literal.split('e')
  const [whole = '', part = ''] = mantissa.split('.')
  return fc.nat(25).map((zeros) => {
    // Multiplied, not appended: JSON has no literal that starts with two zeros.
    const shifted = BigInt(`${whole.replace('-', '')}${part}`) * 10n ** BigInt(zeros)
    const sign = literal.startsWith('-') ? '-' : ''
    return `${sign}${shifted}e${Number(exponent) - part.length - zeros}`
  })
}

/** The value times 10^100, as digits. */
function exactly(literal: string): bigint {
  const [mantissa = '', exponent = '0'] = literal.split('e')
  const [whole = '', part = ''] = mantissa.split('.')
  const value =
    BigInt(`${whole.replace('-', '')}${part}`) * 10n ** BigInt(Number(exponent) - part.length + 100)
  return literal.startsWith('-') ? -value : value
}
