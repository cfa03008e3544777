import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { readJson } from '../../../src/core/read-json.ts'
import { canonicalJson } from '../../../src/http/fingerprint/canonical-json.ts'
import {
  createFingerprinter,
  type FingerprintInput,
} from '../../../src/http/fingerprint/fingerprint.ts'
import { encodeReply } from '../../../src/http/reply/reply-codec.ts'
import { openReply } from '../../../src/http/reply/reply-encryption.ts'
import {
  isHeaderName,
  isHeaderValue,
  pickStored,
  resolveStoredHeaders,
} from '../../../src/http/reply/stored-headers.ts'
import { claimRequest } from '../../../src/testing/index.ts'
import { checkKey, type KeyRules, parseKeyHeader } from '../../../src/protocol/key-syntax.ts'

// No input throws, and the same input gives the same answer twice.

const MEBIBYTE = 1024 * 1024

const rules: fc.Arbitrary<KeyRules> = fc.record({
  syntax: fc.constantFrom('lenient', 'strict'),
  lengthMin: fc.nat(3),
  lengthMax: fc.integer({ min: 3, max: 300 }),
  pattern: fc.constantFrom(undefined, /^[\w-]+$/g),
  refusePersonalData: fc.boolean(),
})

const headerText = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.string({
    unit: fc.constantFrom('"', '\\', ';', '=', ',', ' ', '\t', 'a', '@', '?1', ':', '%'),
  }),
  fc.string().map((text) => `"${text}"`),
  fc.string().map((text) => `"a";${text}`),
  fc.constantFrom('\ud800', '\0', '"\0"', '"\ud800"', '\u00ff'.repeat(300), '"'.repeat(20_000)),
)

const jsonText = fc.oneof(
  fc.json({ stringUnit: 'binary' }),
  fc.nat(2000).map((depth) => '['.repeat(depth) + ']'.repeat(depth)),
  fc.nat(2000).map((depth) => `${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`),
  fc.stringMatching(/^-?(0|[1-9]\d{0,40})(\.\d{1,40})?([eE][+-]?\d{1,30})?$/),
  fc.array(fc.constantFrom('a', '__proto__', 'constructor', '\\u0061')).map((names) => {
    return `{${names.map((name, index) => `"${name}":${index}`).join(',')}}`
  }),
  fc.array(fc.constantFrom('\\ud800', '\\udc00', '\\u0000', '\ud800', 'x')).map((units) => {
    return `["${units.join('')}",{"${units.join('')}":1}]`
  }),
  fc.string({
    unit: fc.constantFrom('{', '}', '[', ']', '"', '\\', ',', ':', '1', 'e', '-', 'null'),
  }),
)

const bodyBytes = fc.oneof(
  fc.uint8Array({ maxLength: 200 }),
  jsonText.map((text) => new Uint8Array(Buffer.from(text))),
  fc.tuple(jsonText, fc.nat(), fc.nat(255)).map(([text, at, byte]) => {
    const bytes = new Uint8Array(Buffer.from(text))
    if (bytes.length > 0) bytes[at % bytes.length] = byte
    return bytes
  }),
)

const inputs: fc.Arbitrary<FingerprintInput> = fc.record({
  method: fc.constantFrom('POST', 'patch', ''),
  path: fc.string({ unit: 'binary' }),
  query: fc.string({ unit: 'binary' }),
  mediaType: fc.oneof(
    fc.constantFrom('application/json', 'a/b+json', 'text/plain', ';', 'multipart/x;boundary="'),
    fc.string().map((text) => `multipart/form-data; boundary=${text}`),
    fc.string(),
  ),
  body: fc.oneof(
    bodyBytes.map((bytes) => ({ kind: 'bytes' as const, bytes })),
    fc
      .anything({ withBigInt: true, withDate: true, withMap: true, withNullPrototype: true })
      .map((value) => ({ kind: 'value' as const, value })),
    fc.constant({ kind: 'none' as const }),
  ),
  principal: fc.option(fc.string({ unit: 'binary' }), { nil: undefined }),
  fields: fc.option(fc.array(fc.string()), { nil: undefined }),
})

describe('hostile input', () => {
  it('any key header is a valid key, or malformed with a reason', () => {
    fc.assert(
      fc.property(
        fc.oneof(headerText, fc.array(headerText, { maxLength: 3 })),
        rules,
        (value, rule) => {
          const parse = parseKeyHeader(value, rule)
          expect(parseKeyHeader(value, rule)).toEqual(parse)
          if (parse.kind === 'malformed') expect(parse.detail).toMatch(/^The .+\.$/)
          if (parse.kind !== 'key') return
          expect(parse.key.length).toBeLessThanOrEqual(rule.lengthMax)
          expect(parse.key).toMatch(/^[ -~]+$/)
          expect(checkKey(parse.key, rule)).toEqual(parse)
        },
      ),
      { numRuns: 5000 },
    )
  })

  it('any key from a body is a valid key, or malformed with a reason', () => {
    fc.assert(
      fc.property(fc.oneof(fc.anything(), headerText), rules, (value, rule) => {
        const parse = checkKey(value, rule)
        expect(checkKey(value, rule)).toEqual(parse)
        if (parse.kind === 'key') expect(parse.key.isWellFormed()).toBe(true)
      }),
      { numRuns: 2000 },
    )
  })

  it('any JSON has a canonical form exactly if it can be parsed', () => {
    fc.assert(
      fc.property(jsonText, (text) => {
        const canonical = canonicalJson(text)
        expect(canonicalJson(text)).toBe(canonical)
        expect(canonical !== undefined).toBe(isShallowJson(text))
        if (canonical === undefined) return
        expect(canonical.isWellFormed()).toBe(true)
        expect(canonicalJson(canonical)).toBe(canonical)
        expect(parsed(canonical)).toEqual(parsed(text))
      }),
      { numRuns: 3000 },
    )
  })

  it('any request has one fingerprint, plain or keyed', () => {
    const plain = createFingerprinter()
    const keyed = createFingerprinter({ secrets: [{ id: 'k', secret: 'sesame'.repeat(6) }] })
    fc.assert(
      fc.property(inputs, (input) => {
        const fingerprint = plain.current(input)
        expect(plain.current(input)).toBe(fingerprint)
        expect(keyed.current(input) === undefined).toBe(fingerprint === undefined)
        if (input.body.kind !== 'value') expect(fingerprint).toMatch(/^v1:[\w-]{43}$/)
        if (fingerprint !== undefined) expect(keyed.recompute(fingerprint, input)).toBe(fingerprint)
      }),
      { numRuns: 3000 },
    )
  })

  it('a body of the largest size is processed in one pass', () => {
    const { current } = createFingerprinter()
    const bodies = [
      '['.repeat(MEBIBYTE),
      '9'.repeat(MEBIBYTE),
      `"${'\\n'.repeat(MEBIBYTE / 2)}"`,
      `[${'"\\n",'.repeat(MEBIBYTE / 5)}1]`,
      `${'['.repeat(500)}"${'x'.repeat(MEBIBYTE)}"${']'.repeat(500)}`,
      `{${'"a":1,'.repeat(MEBIBYTE / 6)}"a":2}`,
      '\0'.repeat(MEBIBYTE),
      '\r\n--b'.repeat(MEBIBYTE / 5),
    ].map((text) => Buffer.from(text))
    const types = ['application/json', 'multipart/form-data; boundary=b', 'text/plain']
    const prints = types.flatMap((mediaType) => {
      return bodies.map((bytes) => {
        const body = { kind: 'bytes', bytes } as const
        return current({ method: 'POST', path: '/', query: '', mediaType, body })
      })
    })
    expect(new Set(prints).size).toBe(bodies.length * types.length)
  })

  it('any reply is stored and returned, or is unreadable', () => {
    const headers = fc.array(fc.tuple(headerText, headerText), { maxLength: 5 })
    const allowed = resolveStoredHeaders(['a'])
    const record = claimRequest()
    fc.assert(
      fc.property(headers, bodyBytes, fc.nat(), (pairs, body, at) => {
        const picked = pickStored(pairs, allowed)
        expect(picked.every(([name]) => allowed.has(name))).toBe(true)
        const reply = { status: 200, headers: pairs, body, elided: false, schemaVersion: 0 }
        const encoded = encodeReply(reply, record)
        const open = (bytes: Uint8Array) =>
          openReply(bytes, record, { encryption: undefined, requireEncryption: false })
        const isSendable = pairs.every(
          ([name, value]) => isHeaderName(name) && isHeaderValue(value),
        )
        expect(open(encoded)).toMatchObject({ kind: isSendable ? 'reply' : 'unreadable' })
        const cut = encoded.subarray(0, at % encoded.length)
        expect(open(cut)).toMatchObject({ kind: 'unreadable' })
        const damaged = Uint8Array.from(encoded)
        damaged[at % damaged.length]! ^= 1 << (at & 7)
        expect(open(damaged)).toMatchObject({ kind: 'unreadable' })
      }),
      { numRuns: 1000 },
    )
  })
})

/** Avoids a V8 bug that confuses an escaped name with another. Treats negative zero as zero. */
const parsed = (text: string): unknown => withoutSigns(readJson(text))

function withoutSigns(value: unknown): unknown {
  if (value === 0) return 0
  if (Array.isArray(value)) return value.map(withoutSigns)
  if (typeof value !== 'object' || value === null) return value
  const members = Object.entries(value).map(([name, member]) => [name, withoutSigns(member)])
  return Object.fromEntries(members)
}

function isShallowJson(text: string): boolean {
  try {
    JSON.parse(text)
  } catch {
    return false
  }
  return !/[[{](?:"a":)?(?:[[{](?:"a":)?){512}/.test(text)
}
