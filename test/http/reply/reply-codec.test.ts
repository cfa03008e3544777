import { hash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Encryption } from '../../../src/core/encryption.ts'
import type { EventSubject } from '../../../src/core/events.ts'
import { isTimedOutReply, timedOutReply } from '../../../src/http/reply/abandoned-reply.ts'
import {
  encodeEncrypted,
  encodeReply,
  type ReplyDecode,
  type StoredReply,
} from '../../../src/http/reply/reply-codec.ts'
import { openReply, storedForm } from '../../../src/http/reply/reply-encryption.ts'
import { aesGcm, failing, flipping, flippingLater } from './encryptions.ts'
import { VERSION_1_REPLIES, VERSION_1_SEALED } from './version-1-replies.ts'

const RECORD: EventSubject = {
  identity: '00112233445566778899aabbccddeeff',
  tenant: 'acme',
  operation: 'POST /payments',
  recordId: '01900000-0000-7000-8000-000000000001',
}

const REPLY: StoredReply = {
  status: 201,
  headers: [
    ['content-type', 'application/json'],
    ['location', '/payments/1'],
  ],
  body: Uint8Array.of(0, 255, 13, 10),
  elided: false,
  schemaVersion: 3,
}

const headerName = fc.stringMatching(/^x-[!#$%&'*+.^_`|~0-9a-z-]{0,20}$/)
const headerValue = fc.stringMatching(/^[\t\x20-\x7e\x80-\xff]{0,40}$/)

const replies: fc.Arbitrary<StoredReply> = fc
  .record({
    status: fc.integer({ min: 200, max: 599 }),
    headers: fc.array(fc.tuple(headerName, headerValue), { maxLength: 20 }),
    body: fc.uint8Array({ maxLength: 200 }),
    elided: fc.boolean(),
    schemaVersion: fc.integer({ min: 0, max: 65_535 }),
  })
  .map((reply) => (reply.elided ? { ...reply, body: new Uint8Array(0) } : reply))

/** Converts Buffers to plain arrays, which the test runner treats as different. */
function plain(decode: ReplyDecode): ReplyDecode {
  if (decode.kind !== 'reply') return decode
  return { kind: 'reply', reply: { ...decode.reply, body: Uint8Array.from(decode.reply.body) } }
}

function open(
  bytes: Uint8Array,
  encryption?: Encryption,
  { record = RECORD, required = false } = {},
): ReplyDecode | Promise<ReplyDecode> {
  return openReply(bytes, record, { encryption, requireEncryption: required })
}

/** The result of synchronous hooks. */
function openNow(...args: Parameters<typeof open>): ReplyDecode {
  const decode = open(...args)
  if (decode instanceof Promise) throw new Error('expected a synchronous reply')
  return plain(decode)
}

const encode = (reply = REPLY, record: EventSubject | undefined = RECORD) =>
  encodeReply(reply, record)
const encrypted = (encryption: Encryption, record = RECORD) =>
  storedForm(REPLY, record, encryption) as Uint8Array
const fromHex = (hex: string) => new Uint8Array(Buffer.from(hex, 'hex'))
const unreadable = (detail: RegExp) => ({
  kind: 'unreadable',
  detail: expect.stringMatching(detail),
})

/** Every copy of the bytes with one flipped bit. */
function* flips(bytes: Uint8Array): Generator<Uint8Array> {
  for (let bit = 0; bit < bytes.length * 8; bit++) {
    const damaged = Uint8Array.from(bytes)
    damaged[bit >> 3]! ^= 1 << (bit & 7)
    yield damaged
  }
}

describe('the reply codec', () => {
  it('the reply codec decodes what it encoded', () => {
    fc.assert(
      fc.property(replies, (reply) => {
        expect(openNow(encode(reply))).toEqual({ kind: 'reply', reply })
        expect(openNow(encodeReply(reply, undefined))).toEqual({ kind: 'reply', reply })
      }),
      { numRuns: 500 },
    )
  })

  it('the reply codec never changes the bytes of version 2', () => {
    const hex =
      '0200' +
      '0000004f' +
      '000300c90002' +
      '000c00000010' +
      Buffer.from('content-typeapplication/json').toString('hex') +
      '00080000000b' +
      Buffer.from('location/payments/1').toString('hex') +
      '00ff0d0a'
    // The checksums come from a CRC-32 in another language.
    expect(Buffer.from(encode()).toString('hex')).toBe(`${hex}e7586c13`)
    const unbound = hex.replace('0200', '0204')
    expect(Buffer.from(encodeReply(REPLY, undefined)).toString('hex')).toBe(`${unbound}659654eb`)
  })

  it('the reply codec reads from any offset of a larger buffer, and copies no body', () => {
    const encoded = encode()
    const larger = new Uint8Array(encoded.length + 20)
    larger.set(encoded, 7)
    const decode = open(larger.subarray(7, 7 + encoded.length)) as ReplyDecode
    expect(plain(decode)).toEqual({ kind: 'reply', reply: REPLY })
    expect(decode.kind === 'reply' && decode.reply.body.buffer).toBe(larger.buffer)
  })

  it('the reply codec leaves an elided body out', () => {
    const reply = { ...REPLY, elided: true, body: new Uint8Array(0) }
    expect(openNow(encode({ ...REPLY, elided: true }))).toEqual({ kind: 'reply', reply })
  })

  it('the reply codec cannot read a reply with a flipped, missing or additional byte', () => {
    const forms = [encode(), encode({ ...REPLY, elided: true }), encodeReply(REPLY, undefined)]
    for (const encoded of forms) {
      for (const damaged of flips(encoded)) expect(openNow(damaged).kind).toBe('unreadable')
      for (let length = 0; length < encoded.length; length += 1) {
        expect(openNow(encoded.subarray(0, length)).kind).toBe('unreadable')
      }
      expect(openNow(Uint8Array.of(...encoded, 0)).kind).toBe('unreadable')
    }
  })

  it.each([
    ['identity', { ...RECORD, identity: `${RECORD.identity.slice(0, 31)}e` }],
    ['record id', { ...RECORD, recordId: RECORD.recordId.replace(/1$/, '2') }],
  ])('the reply codec cannot read a reply of a record with another %s', (_what, record) => {
    expect(openNow(encode(), undefined, { record })).toEqual(unreadable(/another record/))
    expect(openNow(encodeReply(REPLY, undefined), undefined, { record }).kind).toBe('reply')
  })

  it.each([
    ['another version', [3, 0, 0, 0, 0, 200, 0, 0], /format version 3; this release reads 1 to 2/],
    ['unknown flags', [2, 8, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0], /flags 8/],
    ['an encrypted reply without a record', [2, 6, 0, 0, 0, 10, 0, 0, 0, 0], /flags 6/],
    ['a frame without an end', [2, 0, 0, 0], /truncated/],
    ['another length', [2, 0, 0, 0, 0, 99, 0, 0, 0, 0], /has 10 bytes, but its length field is 99/],
    ['unknown flags of version 1', [1, 4, 0, 0, 0, 200, 0, 0], /flags 4/],
    ['a header beyond the end', [1, 0, 0, 0, 0, 200, 0, 1, 0, 1, 255, 255, 255, 255], /truncated/],
    ['a body where there is none', [1, 1, 0, 0, 0, 200, 0, 0, 7], /elided/],
    ['nothing', [], /only 0 bytes/],
  ])('the reply codec reports that it cannot read %s', (_what, bytes, detail) => {
    expect(openNow(Uint8Array.from(bytes))).toEqual(unreadable(detail))
  })

  it.each([0, 99, 100, 101, 199, 600, 999, 65_535])(
    'the reply codec returns no reply of status %i',
    (status) => {
      expect(openNow(encode({ ...REPLY, status }))).toEqual(unreadable(/has status/))
      const [high, low] = [status >> 8, status & 255]
      expect(openNow(Uint8Array.of(1, 0, 0, 0, high, low, 0, 0))).toEqual(unreadable(/has status/))
    },
  )

  it.each([
    ['name', ['', 'x']],
    ['name', ['x a', 'x']],
    ['name', ['x:', 'x']],
    ['name', ['x\r\nset-cookie', 'x']],
    ['name', ['caf\u00e9', 'x']],
    ['value', ['x-a', 'line\r\nset-cookie: sid=1']],
    ['value', ['content-type', 'a\nb']],
    ['value', ['location', 'a\0b']],
    ['value', ['x-a', 'snow \u2603']],
  ] as const)('the reply codec returns no reply with an invalid header %s: %j', (part, header) => {
    const encoded = encode({ ...REPLY, headers: [header] })
    const decode = openNow(encoded)
    expect(decode).toEqual(unreadable(new RegExp(`invalid header ${part}`)))
    // The name may be part of a body, so it is not logged.
    expect(decode).not.toEqual(unreadable(/cookie|snow|line/))
  })

  it('the reply codec drops headers that it would not have stored', () => {
    const headers = [
      ['content-type', 'text/plain'],
      ['set-cookie', 'sid=1'],
      ['Transfer-Encoding', 'chunked'],
      ['content-length', '1'],
      ['connection', 'x-hop, close'],
      ['x-hop', '1'],
      ['proxy-authenticate', 'Basic'],
      ['idempotent-replayed', 'false'],
      ['x-kept', '1'],
    ] as const
    const kept = [headers[0], headers[8]]
    const expected = { kind: 'reply', reply: { ...REPLY, headers: kept } }
    expect(openNow(encode({ ...REPLY, headers }))).toEqual(expected)
  })

  it('the reply codec never throws on random bytes', () => {
    const anything = fc.uint8Array({ maxLength: 300 })
    const almost = fc
      .tuple(anything, fc.integer({ min: 1, max: 2 }), fc.integer({ min: 0, max: 7 }))
      .map(([bytes, version, flags]) => Uint8Array.of(version, flags, ...bytes))
    // With a correct length and checksum, so that the content is decoded.
    const framed = anything.map((bytes) => encodeEncrypted(bytes, RECORD))
    fc.assert(
      fc.property(fc.oneof(anything, almost, framed), (bytes) => {
        for (const encryption of [undefined, flipping, failing]) {
          const decode = openNow(bytes, encryption)
          expect(decode.kind).toMatch(/^(reply|unreadable)$/)
          expect(openNow(bytes, encryption)).toEqual(decode)
        }
      }),
      { numRuns: 3000 },
    )
  })
})

describe('a reply in format version 1', () => {
  it.each(VERSION_1_REPLIES)('reads a version 1 reply: %s', (_name, hex, reply) => {
    expect(openNow(fromHex(hex))).toEqual({ kind: 'reply', reply })
    expect(openNow(fromHex(hex), failing)).toEqual({ kind: 'reply', reply })
    expect(openNow(fromHex(hex), flipping, { required: true })).toEqual(unreadable(/not encrypted/))
  })

  it.each(VERSION_1_SEALED)(
    'decrypts a version 1 reply without associated data: %s',
    (_name, hex, reply) => {
      const given: number[] = []
      const decrypt: Encryption['decrypt'] = (bytes, context) => {
        given.push(context.associatedData.length)
        return flipping.decrypt(bytes, context)
      }
      const encryption = { ...flipping, decrypt }
      expect(openNow(fromHex(hex), encryption)).toEqual({ kind: 'reply', reply })
      expect(given).toEqual([0])
      // A version 1 reply would decrypt in the row of any tenant.
      const required = openNow(fromHex(hex), encryption, { required: true })
      expect(required).toEqual(unreadable(/without the identity of its record/))
    },
  )

  it('a version 1 reply with a flipped bit never throws', () => {
    for (const [, hex] of [...VERSION_1_REPLIES, ...VERSION_1_SEALED]) {
      for (const damaged of flips(fromHex(hex))) {
        expect(openNow(damaged, flipping).kind).toMatch(/^(reply|unreadable)$/)
      }
    }
  })
})

describe('encryption', () => {
  it('encryption hides everything except the frame, and returns the reply', () => {
    const encryption = aesGcm()
    const stored = encrypted(encryption)
    expect([...stored.subarray(0, 2)]).toEqual([2, 2])
    expect(Buffer.from(stored).includes('payments')).toBe(false)
    expect(openNow(stored, encryption)).toEqual({ kind: 'reply', reply: REPLY })
    expect(openNow(stored, encryption, { required: true })).toEqual({ kind: 'reply', reply: REPLY })
  })

  it('encryption gets the record as one byte string, and by its parts', () => {
    const seen: unknown[] = []
    const note: Encryption['encrypt'] = (bytes, { associatedData, ...parts }) => {
      seen.push({ ...parts, associatedData: Buffer.from(associatedData).toString() })
      return bytes
    }
    const stored = encrypted({ encrypt: note, decrypt: note })
    expect(openNow(stored, { encrypt: note, decrypt: note }).kind).toBe('reply')
    const associatedData = `oncekey:reply:2:${RECORD.identity}:${RECORD.recordId}`
    const context = { purpose: 'reply', ...RECORD, associatedData }
    expect(seen).toEqual([context, context])
  })

  it('encryption answers synchronously unless a hook is asynchronous', async () => {
    expect(storedForm(REPLY, RECORD, undefined)).toBeInstanceOf(Uint8Array)
    expect(encrypted(flipping)).toBeInstanceOf(Uint8Array)
    const later = storedForm({ ...REPLY, elided: true }, RECORD, flippingLater)
    expect(later).toBeInstanceOf(Promise)
    const decode = await open(await later, flippingLater)
    expect(decode).toMatchObject({ kind: 'reply', reply: { elided: true, status: 201 } })
  })

  it('encryption accepts promises of other libraries', async () => {
    const thenable = (bytes: Uint8Array) => {
      const settled = Promise.resolve(bytes)
      const get = (_: object, name: string) => (name === 'then' ? settled.then.bind(settled) : 0)
      return new Proxy({}, { get }) as Promise<Uint8Array>
    }
    const stored = await storedForm(REPLY, RECORD, { encrypt: thenable, decrypt: thenable })
    const decode = open(stored, { encrypt: thenable, decrypt: thenable })
    expect(decode).toBeInstanceOf(Promise)
    expect(plain(await decode)).toEqual({ kind: 'reply', reply: REPLY })
  })

  it('encryption detects every flipped bit with any cipher', () => {
    for (const encryption of [aesGcm(), flipping]) {
      for (const damaged of flips(encrypted(encryption))) {
        expect(openNow(damaged, encryption).kind).toBe('unreadable')
      }
    }
  })

  it('encryption refuses the bytes of another record with any cipher', () => {
    const other = { ...RECORD, identity: 'f'.repeat(32), tenant: 'bravo' }
    for (const encryption of [aesGcm(), aesGcm(undefined, { bound: false }), flipping]) {
      const stored = encrypted(encryption)
      expect(openNow(stored, encryption, { record: other })).toEqual(unreadable(/another record/))
      // With a frame that an attacker has adapted.
      const payload = stored.subarray(6, stored.length - 4)
      const forged = encodeEncrypted(payload, other)
      expect(openNow(forged, encryption, { record: other }).kind).toBe('unreadable')
    }
  })

  it('encryption accepts no frame inside a frame, and no unbound reply inside one', () => {
    for (const inner of [encrypted(flipping), encodeReply(REPLY, undefined)]) {
      const stored = encodeEncrypted(flipping.encrypt(inner, {} as never) as Uint8Array, RECORD)
      expect(openNow(stored, flipping)).toEqual(unreadable(/holds no reply of this record/))
    }
  })

  it('a reply is unreadable without the hook, or with a hook that fails', async () => {
    const stored = encrypted(flipping)
    const rejecting: Encryption = { ...flipping, decrypt: () => Promise.reject(new Error('gone')) }
    expect(openNow(stored)).toEqual(unreadable(/no encryption option/))
    expect(openNow(stored, failing)).toEqual(unreadable(/no such key/))
    expect(await open(stored, rejecting)).toEqual(unreadable(/: gone$/))
    const text = { ...flipping, decrypt: () => 'text' as never }
    expect(openNow(stored, text)).toEqual(unreadable(/must return a Uint8Array, got "text"/))
    const short = { ...flipping, decrypt: () => Uint8Array.of(1) }
    expect(openNow(stored, short)).toEqual(unreadable(/cannot be read: .* only 1 bytes/))
  })

  it('the encryption hook gets a copy of the stored bytes', () => {
    const stored = encrypted(flipping)
    const before = Uint8Array.from(stored)
    const wiping: Encryption = { ...flipping, decrypt: (bytes) => bytes.fill(0) }
    openNow(stored, wiping)
    expect(Uint8Array.from(stored)).toEqual(before)
  })

  it('encryption throws when encrypt returns no bytes', async () => {
    const nothing = { ...flipping, encrypt: () => undefined as never }
    expect(() => encrypted(nothing)).toThrow(/encrypt must return a Uint8Array, got undefined/)
    const later = { ...flipping, encrypt: () => Promise.resolve(undefined as never) }
    await expect(storedForm(REPLY, RECORD, later)).rejects.toThrow(/must return a Uint8Array/)
  })
})

describe('required encryption', () => {
  it('required encryption refuses plain replies, bound or not', () => {
    for (const stored of [encode(), encodeReply(REPLY, undefined)]) {
      expect(openNow(stored, flipping)).toMatchObject({ kind: 'reply' })
      expect(openNow(stored, flipping, { required: true })).toEqual(unreadable(/not encrypted/))
    }
  })

  it('required encryption accepts the known reply of abandoned work', () => {
    const stored = timedOutReply()
    const taken = { kind: 'reply', reply: expect.objectContaining({ status: 408 }) }
    expect(openNow(stored, flipping, { required: true })).toEqual(taken)
    for (const damaged of flips(stored)) {
      expect(isTimedOutReply(damaged)).toBe(false)
      expect(openNow(damaged, flipping, { required: true }).kind).toBe('unreadable')
    }
  })

  it('the bytes of the abandoned reply never change, because earlier releases stored them', () => {
    expect(hash('sha256', timedOutReply())).toBe(
      'a3cb8addac131e1a4fd95791bbaf2aa83787aa64b399cca334afbef589690653',
    )
  })
})
