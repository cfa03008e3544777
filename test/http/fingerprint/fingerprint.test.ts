import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { InvalidOptionsError } from '../../../src/core/errors.ts'
import { readJson } from '../../../src/core/read-json.ts'
import type { FingerprintBody } from '../../../src/http/fingerprint/fingerprint-body.ts'
import {
  createFingerprinter,
  type FingerprintInput,
} from '../../../src/http/fingerprint/fingerprint.ts'

const plain = createFingerprinter()

const bytes = (text: string | Uint8Array): FingerprintBody => ({
  kind: 'bytes',
  bytes: typeof text === 'string' ? Buffer.from(text) : text,
})
const value = (parsed: unknown): FingerprintBody => ({ kind: 'value', value: parsed })
const NONE: FingerprintBody = { kind: 'none' }

function input(changes: Partial<FingerprintInput> = {}): FingerprintInput {
  return {
    method: 'POST',
    path: '/payments',
    query: '',
    mediaType: 'application/json',
    body: bytes('{"amount":1200,"currency":"eur"}'),
    ...changes,
  }
}

const print = (changes?: Partial<FingerprintInput>): string | undefined =>
  plain.current(input(changes))

describe('a fingerprint', () => {
  it('a fingerprint of version 1 never changes', () => {
    const keyed = createFingerprinter({ secrets: [{ id: 'k1', secret: 'sesame'.repeat(6) }] })
    expect([
      print(),
      print({ body: NONE, mediaType: '' }),
      print({ principal: 'jane', query: 'a=1' }),
      print({ mediaType: 'text/plain', body: bytes('hello') }),
      print({ mediaType: 'multipart/form-data; boundary=b', body: bytes('--b\r\n\r\nx\r\n--b--') }),
      print({ fields: ['amount', 'nothing'] }),
      print({ principal: '\ud800' }),
      keyed.current(input()),
    ]).toMatchInlineSnapshot(`
      [
        "v1:_qEeAuUt2NQCa1SH8_E2XJ4ZTKo4yg5tM-ZOLDNqtTM",
        "v1:ginSb9nBTo_xKzgUiSSJDWE3Y41xTcxNpJyRXTnP3aY",
        "v1:00Mf4kUGOKcq_aBPwJIOaDqp9WzMtpv5V9vqnnZs1jk",
        "v1:7ZrtUj1YNHg8BZHlZ9noFazyFQEjyzWVkwtgiDCIpxU",
        "v1:zQ49UxtIHYzuMG5TOn5lubjsBCvHpMHscEsn0UZjmbM",
        "v1:Q8mleTS_scNO8G9Mm43DpVnQ-iBXzU_JAWxaisLMg5s",
        "v1:kvPS6UqcrMDAb1BfmWohb0QKNkrexN7S5wx2Em1c6xg",
        "v1.k1:Bdy6PwTWwFqGw6A4cyB_viJ7vL2va0z8V1vxszRCJYI",
      ]
    `)
  })

  it('a fingerprint differs when method, path, query, media type, principal or body differ', () => {
    const prints = [
      print(),
      print({ method: 'PATCH' }),
      print({ path: '/payment' }),
      print({ path: '/payments/' }),
      print({ query: 'a=1' }),
      print({ path: '/paymentsa', query: '' }),
      print({ path: '/payments', query: 'a' }),
      print({ mediaType: 'application/vnd.api+json' }),
      print({ mediaType: 'text/plain' }),
      print({ principal: '' }),
      print({ principal: 'jane' }),
      print({ principal: '\ud800' }),
      print({ principal: '\ud801' }),
      print({ principal: '\ufffd' }),
      print({ body: bytes('{"amount":1201,"currency":"eur"}') }),
      print({ body: bytes('{"amount":"1200","currency":"eur"}') }),
      print({ body: bytes('{"amount":1200,"currency":"eur"') }),
      print({ body: NONE }),
    ]
    expect(new Set(prints).size).toBe(prints.length)
  })

  it('a fingerprint does not depend on the case of the method or on media type parameters', () => {
    expect(print({ method: 'post' })).toBe(print())
    expect(print({ mediaType: 'Application/JSON ; charset=utf-8' })).toBe(print())
  })

  it('an empty body and no body have the same fingerprint', () => {
    for (const mediaType of ['', 'application/json', 'text/plain']) {
      const none = print({ mediaType, body: NONE })
      expect(print({ mediaType, body: bytes('') })).toBe(none)
      expect(print({ mediaType, body: value(undefined) })).toBe(none)
      expect(print({ mediaType, body: value('') })).toBe(none)
    }
  })

  it('a fingerprint covers the whole body, to the last byte', () => {
    const long = Buffer.alloc(1024 * 1024, 'x')
    const other = Buffer.from(long)
    other[other.length - 1] = 0x79
    const mediaType = 'application/octet-stream'
    expect(print({ mediaType, body: bytes(long) })).not.toBe(
      print({ mediaType, body: bytes(other) }),
    )
  })
})

describe('a JSON body', () => {
  it.each(['application/json', 'application/vnd.api+json', 'application/problem+JSON; v=1'])(
    'a JSON body of type %s is compared by meaning',
    (mediaType) => {
      const one = print({ mediaType, body: bytes('{"a":1.0,"b":"\\u00e9"}') })
      expect(print({ mediaType, body: bytes(' {"b":"é", "a":1}') })).toBe(one)
      expect(print({ mediaType, body: bytes('{"a":1,"b":"e"}') })).not.toBe(one)
    },
  )

  it.each(['text/plain', 'application/jsonl', 'application/x-www-form-urlencoded', ''])(
    'a JSON body sent as %j is compared by its bytes',
    (mediaType) => {
      expect(print({ mediaType, body: bytes('{"a":1}') })).not.toBe(
        print({ mediaType, body: bytes('{ "a":1}') }),
      )
    },
  )

  it('integers that no double can hold have different fingerprints', () => {
    const one = print({ body: bytes('{"id":9007199254740992}') })
    expect(print({ body: bytes('{"id":9007199254740993}') })).not.toBe(one)
    expect(print({ body: value({ id: 9007199254740993n }) })).toBe(
      print({ body: bytes('{"id":9007199254740993}') }),
    )
  })

  it('a JSON body has the same fingerprint as bytes and as a parsed value', () => {
    const object = fc.dictionary(fc.string({ unit: 'binary' }), fc.jsonValue())
    fc.assert(
      fc.property(fc.oneof(object, fc.array(fc.jsonValue())), (parsed) => {
        const text = JSON.stringify(parsed)
        const expected = print({ body: bytes(text) })
        expect(print({ body: value(readJson(text)) })).toBe(expected)
        expect(print({ body: value(Buffer.from(text)) })).toBe(expected)
        expect(expected).toBeDefined()
      }),
      { numRuns: 500 },
    )
  })

  it('a JSON body that is broken, not UTF-8 or too deep is compared by its bytes', () => {
    const bodies = [
      bytes('{"a":1'),
      bytes('{"a":1 '),
      bytes(Uint8Array.of(0x22, 0xff, 0x22)),
      bytes(Uint8Array.of(0x22, 0xfe, 0x22)),
      bytes('["\ufffd"]'),
      bytes('['.repeat(600) + ']'.repeat(600)),
      bytes(`${'['.repeat(600)} ${']'.repeat(600)}`),
    ]
    expect(new Set(bodies.map((body) => print({ body }))).size).toBe(bodies.length)
  })

  it('the byte order mark of a JSON body is always ignored', () => {
    const marked = bytes('\ufeff{"a":1}')
    const expected = print({ body: bytes('{"a":1}') })
    for (let time = 0; time < 3; time += 1) expect(print({ body: marked })).toBe(expected)
  })
})

describe('a parsed body', () => {
  it('half surrogate pairs in a parsed body differ from each other', () => {
    const prints = ['\ud800', '\ud801', '\ufffd'].map((text) => print({ body: value({ text }) }))
    expect(new Set(prints).size).toBe(3)
  })

  it('a parsed body that is a string is compared by its bytes', () => {
    const mediaType = 'text/plain'
    expect(print({ mediaType, body: value('héllo') })).toBe(
      print({ mediaType, body: bytes('héllo') }),
    )
    expect(print({ body: value('1') })).not.toBe(print({ body: value(1) }))
  })

  it('a parsed null differs from no body', () => {
    expect(print({ body: value(null) })).toBe(print({ body: bytes('null') }))
    expect(print({ body: value(null) })).not.toBe(print({ body: NONE }))
  })

  it('a parsed bigint is written as its digits, unlike any string', () => {
    expect(print({ body: value({ a: [-5n], b: '5' }) })).toBe(
      print({ body: value({ a: [-5], b: '5' }) }),
    )
    expect(print({ body: value({ a: 5n }) })).not.toBe(print({ body: value({ a: '5' }) }))
  })

  it('a parsed body that is cyclic, too deep or opaque has no fingerprint', () => {
    const cyclic: Record<string, unknown> = {}
    cyclic['self'] = cyclic
    let deep: unknown = 1
    for (let level = 0; level < 100_000; level += 1) deep = [deep]
    const throwing = {
      toJSON(): never {
        throw new Error('no')
      },
    }
    const opaque = [
      cyclic,
      deep,
      throwing,
      new Map([['a', 1]]),
      { file: new Blob(['x']) },
      [new URLSearchParams('a=1')],
      new ArrayBuffer(3),
      () => 1,
      Symbol('s'),
    ]
    for (const parsed of opaque) expect(print({ body: value(parsed) })).toBeUndefined()
  })

  it('a parsed body may contain empty objects of any plain kind', () => {
    const expected = print({ body: bytes('{"a":{}}') })
    expect(print({ body: value({ a: {} }) })).toBe(expected)
    expect(print({ body: value({ a: Object.create(null) as object }) })).toBe(expected)
  })
})

describe('a multipart body', () => {
  const form = (boundary: string, content: string): Partial<FingerprintInput> => ({
    mediaType: `multipart/form-data; boundary=${boundary}`,
    body: bytes(
      `--${boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n` +
        `${content}\r\n--${boundary}--\r\n`,
    ),
  })

  it('a multipart body has the same fingerprint with another boundary', () => {
    expect(print(form('----WebKitFormBoundaryA', 'x'))).toBe(print(form('b2', 'x')))
    expect(print(form('b2', 'y'))).not.toBe(print(form('b2', 'x')))
  })

  it('a multipart body without a boundary parameter is compared by its bytes', () => {
    const mediaType = 'multipart/form-data'
    expect(print({ ...form('a', 'x'), mediaType })).not.toBe(
      print({ ...form('b', 'x'), mediaType }),
    )
  })
})

describe('selected fields', () => {
  const fields = ['amount', 'customer.id']
  const of = (text: string, names: readonly string[] = fields): string | undefined =>
    print({ body: bytes(text), fields: names })

  it('only the selected fields of a JSON object count', () => {
    const one = of('{"amount":1,"customer":{"id":7,"name":"a"},"sentAt":1}')
    expect(of('{"sentAt":2,"customer":{"id":7.0},"amount":1}')).toBe(one)
    expect(of('{"amount":2,"customer":{"id":7}}')).not.toBe(one)
    expect(of('{"amount":1,"customer":{"id":8}}')).not.toBe(one)
    expect(print({ body: value({ amount: 1, customer: { id: 7 } }), fields })).toBe(one)
  })

  it('selected fields may be listed in any order, and twice', () => {
    const text = '{"amount":1,"customer":{"id":7}}'
    expect(of(text, ['customer.id', 'amount', 'amount'])).toBe(of(text))
    expect(of(text, ['amount'])).not.toBe(of(text))
  })

  it('missing selected fields are neither null nor empty', () => {
    const prints = [
      of('{"amount":1}'),
      of('{"amount":1,"customer":7}'),
      of('{"amount":1,"customer":{"id":null}}'),
      of('{"amount":1,"customer":{"id":""}}'),
      of('{"amount":1,"customer":{"id":{}}}'),
    ]
    expect(prints[1]).toBe(prints[0])
    expect(new Set(prints).size).toBe(4)
  })

  it('selected fields are own members only', () => {
    expect(of('{}', ['__proto__.x', 'constructor.name'])).toBe(
      of('{"a":1}', ['__proto__.x', 'constructor.name']),
    )
    expect(of('{"__proto__":{"x":1}}', ['__proto__.x'])).not.toBe(of('{}', ['__proto__.x']))
  })

  it('selected fields fall back to the whole body if it is no JSON object', () => {
    expect(of('[1]')).toBe(print({ body: bytes('[1]') }))
    expect(of('[1]')).not.toBe(of('[2]'))
    expect(of('{"amount":')).not.toBe(of('{"amount": '))
    expect(print({ mediaType: 'text/plain', body: bytes('{"amount":1}'), fields })).toBe(
      print({ mediaType: 'text/plain', body: bytes('{"amount":1}') }),
    )
  })
})

describe('secrets', () => {
  const old = { id: 'k1', secret: 'first'.repeat(7) }
  const next = { id: 'k2', secret: new Uint8Array(16).fill(7) }

  it('a secret puts only its id into the fingerprint', () => {
    const keyed = createFingerprinter({ secrets: [old] }).current(input())
    expect(keyed).toMatch(/^v1\.k1:[\w-]{43}$/)
    expect(print()).toMatch(/^v1:[\w-]{43}$/)
    const other = createFingerprinter({ secrets: [{ id: 'k1', secret: 'other'.repeat(7) }] })
    expect(other.current(input())).not.toBe(keyed)
  })

  it('secrets can be introduced and rotated while old fingerprints exist', () => {
    const before = createFingerprinter({ secrets: [old] }).current(input())!
    const rotated = createFingerprinter({ secrets: [next, old] })
    expect(rotated.current(input())).toMatch(/^v1\.k2:/)
    expect(rotated.recompute(before, input())).toBe(before)
    expect(rotated.recompute(before, input({ query: 'x' }))).not.toBe(before)
    expect(rotated.recompute(print()!, input())).toBe(print())
    expect(plain.recompute(print()!, input())).toBe(print())
  })

  it.each(['v2:abc', 'v1.gone:abc', 'v1', '', 'v1.:abc', 'sha256', 'xv1:abc', 'v1.__proto__:a'])(
    'the fingerprint %j of an unknown version or secret cannot be recomputed',
    (stored) => {
      expect(createFingerprinter({ secrets: [old] }).recompute(stored, input())).toBeUndefined()
    },
  )

  it.each([
    ['an empty secret', [{ id: 'a', secret: '' }], 'too short'],
    ['a text of 31 characters', [{ id: 'a', secret: 'x'.repeat(31) }], 'too short'],
    ['no bytes', [{ id: 'a', secret: new Uint8Array(0) }], 'too short'],
    ['15 bytes', [{ id: 'a', secret: new Uint8Array(15) }], 'too short'],
    ['a number', [{ id: 'a', secret: 7 }], 'must be a string'],
    ['an empty id', [{ ...old, id: '' }], 'must be 1 to 32'],
    ['an id with a colon', [{ ...old, id: 'a:b' }], 'must be 1 to 32'],
    ['a long id', [{ ...old, id: 'a'.repeat(33) }], 'must be 1 to 32'],
    ['an id twice', [old, { ...next, id: 'k1' }], 'used twice'],
    ['acceptOnly as a word', [{ ...old, acceptOnly: 'yes' }], 'true or false'],
    ['an option that does not exist', [{ ...old, current: true }], 'no option "current"'],
    ['no object', [null], 'fingerprint secret'],
    ['no list', old, 'must be an array'],
  ])('refuses fingerprint secrets with %s', (_what, secrets, message) => {
    const make = () => createFingerprinter({ secrets: secrets as never })
    expect(make).toThrow(InvalidOptionsError)
    expect(make).toThrow(message)
  })

  it('the error about a short secret does not contain it', () => {
    const make = () => createFingerprinter({ secrets: [{ id: 'a', secret: 'sesame' }] })
    expect(make).toThrow(expect.not.stringContaining('sesame'))
  })

  it('fingerprint secrets are the only option', () => {
    expect(() => createFingerprinter({ secret: 'x' } as never)).toThrow(/no option "secret"/)
  })
})
