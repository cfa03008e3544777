import fc from 'fast-check'
import { serializeItem } from 'structured-headers'
import { describe, expect, it } from 'vitest'
import { checkKey, type KeyRules, parseKeyHeader } from '../../src/protocol/key-syntax.ts'

const LENIENT: KeyRules = {
  syntax: 'lenient',
  lengthMin: 1,
  lengthMax: 255,
  pattern: undefined,
  refusePersonalData: false,
}
const STRICT: KeyRules = { ...LENIENT, syntax: 'strict' }
const UUID = '8e03978e-40d5-43e8-bc93-6894a57f9324'

const key = (text: string) => ({ kind: 'key', key: text })
const malformed = (detail: RegExp) => ({ kind: 'malformed', detail: expect.stringMatching(detail) })

describe('a lenient key header', () => {
  it.each([
    ['a UUID', UUID],
    ['base64', 'mZ+8/Qy3Jk0hVw=='],
    ['a Stripe SDK key', `stripe-node-retry-${UUID}`],
    ['punctuation', 'a:b_c~d.e-f+g/h=i;j*k'],
    ['inner spaces', 'order 12 retry'],
    ['a double quote inside', 'say "hi"'],
    ['a value that would be a structured-field number', '42'],
    ['a value that would be a byte sequence', ':aGVsbG8=:'],
    ['a value that would be a display string', '%"f%c3%bc"'],
    ['a value that would be a boolean', '?1'],
  ])('accepts %s unchanged as a bare key', (_what, text) => {
    expect(parseKeyHeader(text, LENIENT)).toEqual(key(text))
  })

  it.each([
    [`"${UUID}"`, UUID],
    [`"${UUID}";v=1;w`, UUID],
    ['"a";d=@1659578233', 'a'],
    ['"a";d=@-1;e=@15;v=%"f%c3%bc"', 'a'],
    ['"a=@1;b";d=@1;e', 'a=@1;b'],
    ['"a\\"=@1;";d=@1;e="=@1;"', 'a"=@1;'],
    ['"a,b"', 'a,b'],
    ['"a\\"b\\\\c"', 'a"b\\c'],
    ['  \t"a"\t ', 'a'],
    [' \ta ', 'a'],
    ['" a "', ' a '],
  ])('reads the header %j as the key %j', (header, expected) => {
    expect(parseKeyHeader(header, LENIENT)).toEqual(key(expected))
  })

  it('reads a quoted and a bare key as the same key', () => {
    const bare = fc
      .stringMatching(/^[!#-+\--~]([ -+\--~]{0,60}[!-+\--~])?$/)
      .filter((text) => !text.startsWith('"'))
    fc.assert(
      fc.property(bare, (text) => {
        expect(parseKeyHeader(text, LENIENT)).toEqual(key(text))
        expect(parseKeyHeader(serializeItem(text), LENIENT)).toEqual(key(text))
        expect(parseKeyHeader(serializeItem(text), STRICT)).toEqual(key(text))
      }),
    )
  })

  it('reads every string that a structured-field library writes', () => {
    fc.assert(
      fc.property(fc.stringMatching(/^[ -~]{1,80}$/), (text) => {
        const expected = text.trim() === '' ? malformed(/empty/) : key(text)
        expect(parseKeyHeader(serializeItem(text), LENIENT)).toEqual(expected)
        expect(parseKeyHeader(serializeItem([text, new Map([['p', 1]])]), LENIENT)).toEqual(
          expected,
        )
      }),
    )
  })

  it.each([
    ['a second header line', ['a', 'b'], /more than once/],
    ['two lines joined by a server', 'a, b', /comma/],
    ['two quoted lines joined by a server', '"a", "b"', /well-formed/],
    ['an open string', '"a', /well-formed/],
    ['a bad escape', '"a\\b"', /well-formed/],
    ['text after the string', '"a"b', /well-formed/],
    ['a bad parameter', '"a";=', /well-formed/],
    ['a bad date parameter', '"a";d=@1.5', /well-formed/],
    ['a bad date before another parameter', '"a";d=@1.5;e', /well-formed/],
    ['a date that is too long', '"a";d=@1234567890123456;e', /well-formed/],
    ['a date without digits', '"a";d=@;e', /well-formed/],
    ['an empty header', '', /empty/],
    ['only whitespace', ' \t ', /empty/],
    ['an empty string', '""', /empty/],
    ['a string of spaces', '"  "', /empty/],
    ['a control character', 'a\u0007b', /control/],
    ['a tab inside', 'a\tb', /control/],
    ['a line feed at the end', 'ab\n', /control/],
    ['NUL', 'a\0b', /control/],
    ['DEL', 'a\u007fb', /control/],
    ['latin1', 'caf\u00e9', /ASCII/],
    ['a quoted non-ASCII character', '"caf\u00e9"', /ASCII/],
    ['a no-break space', '\u00a0', /ASCII/],
  ])('refuses %s in a lenient key header', (_what, value, detail) => {
    expect(parseKeyHeader(value, LENIENT)).toEqual(malformed(detail))
  })

  it('accepts an array of one header line, as some servers pass it', () => {
    expect(parseKeyHeader([`"${UUID}"`], LENIENT)).toEqual(key(UUID))
  })

  it('distinguishes an absent header from an empty one', () => {
    expect(parseKeyHeader(undefined, LENIENT)).toEqual({ kind: 'missing' })
    expect(parseKeyHeader([], LENIENT)).toEqual({ kind: 'missing' })
  })
})

describe('a strict key header', () => {
  it.each([UUID, ':aGVsbG8=:', '42', 'token'])(
    'refuses %s without quotes in a strict key header',
    (text) => {
      expect(parseKeyHeader(text, STRICT)).toEqual(malformed(/double quotes/))
      expect(parseKeyHeader(`"${text}"`, STRICT)).toEqual(key(text))
    },
  )
})

describe('the rules for keys', () => {
  it('counts the characters of a key after quotes and escapes are removed', () => {
    const rules = { ...LENIENT, lengthMin: 3, lengthMax: 4 }
    expect(parseKeyHeader('"\\"\\"\\"\\""', rules)).toEqual(key('""""'))
    expect(parseKeyHeader('"abcde"', rules)).toEqual(malformed(/5 characters; at most 4/))
    expect(parseKeyHeader('"ab"', rules)).toEqual(malformed(/2 characters, fewer than the 3/))
  })

  it('accepts a key of 255 characters and refuses one of 256', () => {
    expect(parseKeyHeader('k'.repeat(255), LENIENT)).toEqual(key('k'.repeat(255)))
    expect(parseKeyHeader('k'.repeat(256), LENIENT)).toEqual(malformed(/256 characters/))
  })

  it.each([/^[a-z]+$/, /^[a-z]+$/g, /[a-z]+$/y])(
    'applies the pattern %s to every key in the same way',
    (pattern) => {
      const rules = { ...LENIENT, pattern }
      for (let time = 0; time < 3; time += 1) {
        expect(parseKeyHeader('abc', rules)).toEqual(key('abc'))
        expect(parseKeyHeader('abcd', rules)).toEqual(key('abcd'))
        expect(parseKeyHeader('ABC', rules)).toEqual(malformed(/form/))
      }
    },
  )

  it('never repeats the key in the detail of a refusal', () => {
    const rules = { ...LENIENT, lengthMax: 20, pattern: /^x/, refusePersonalData: true }
    for (const secret of ['sesame', 'jane@example.com', 'sesame'.repeat(9), 'ses,ame', '"sesame']) {
      const parse = parseKeyHeader(secret, rules)
      expect(parse.kind).toBe('malformed')
      expect(JSON.stringify(parse)).not.toMatch(/sesame|jane|ses,ame/)
    }
  })
})

describe('a key that is not in a header', () => {
  it('accepts any well-formed text as a key that is not in a header', () => {
    expect(checkKey('bestellung-ü-订单-😀', LENIENT)).toEqual(key('bestellung-ü-订单-😀'))
    expect(checkKey('a, "b"', STRICT)).toEqual(key('a, "b"'))
  })

  it.each([
    ['a number', 7, /string/],
    ['null', null, /string/],
    ['an object', { toString: () => 'k' }, /string/],
    ['an empty string', '', /empty/],
    ['a string of blanks', ' \u2003 ', /empty/],
    ['a string with a control character', 'a\u0085b', /control/],
    ['a NUL character', '\0', /control/],
    ['a string with half a surrogate pair', 'a\ud800', /surrogate/],
    ['a string that is too long', 'k'.repeat(256), /256/],
  ])('refuses %s as a key that is not in a header', (_what, value, detail) => {
    expect(checkKey(value, LENIENT)).toEqual(malformed(detail))
  })

  it('treats an undefined key as missing', () => {
    expect(checkKey(undefined, LENIENT)).toEqual({ kind: 'missing' })
  })
})

describe('keys that look like personal data', () => {
  const rules: KeyRules = { ...LENIENT, refusePersonalData: true }

  it.each([
    ['jane.doe+test@mail.example.com', /e-mail/],
    ['charge:jane@example.com:1', /e-mail/],
    ['+49 (30) 1234-5678', /phone/],
    ['tel:+14155550123', /phone/],
    ['+1.415.555.0123', /phone/],
    ['+1234567', /phone/],
    ['123-45-6789', /social security/],
    ['ssn-123-45-6789', /social security/],
  ])('refuses the key %s because it looks like personal data', (text, detail) => {
    expect(parseKeyHeader(text, rules)).toEqual(malformed(detail))
    expect(parseKeyHeader(text, LENIENT)).toEqual(key(text))
  })

  it.each([
    'order-1234567',
    '4155550123',
    '2026-11-05T10:00:00Z',
    '01ARZ3NDEKTSV4RRFFQ69G5FAV',
    'd41d8cd98f00b204e9800998ecf8427e',
    'package@10.20.30',
    'ab+1234567',
    '+1234567cd==',
    'invoice+123456',
    '1123-45-6789',
    '123-45-67890',
  ])('accepts the key %s because it does not look like personal data', (text) => {
    expect(parseKeyHeader(text, rules)).toEqual(key(text))
  })

  it('never takes a UUID, a ULID, base64 or hex for personal data', () => {
    const base64 = fc
      .uint8Array({ minLength: 16, maxLength: 48 })
      .chain((bytes) =>
        fc
          .constantFrom('base64' as const, 'base64url' as const, 'hex' as const)
          .map((encoding) => Buffer.from(bytes).toString(encoding)),
      )
    fc.assert(
      fc.property(fc.oneof(fc.uuid(), fc.ulid(), base64), (text) => {
        expect(parseKeyHeader(text, rules)).toEqual(key(text))
      }),
      { numRuns: 1000 },
    )
  })
})
