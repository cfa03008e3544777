import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  decodeReply,
  encodeReply,
  openReply,
  type ReplyDecode,
  sealReply,
  type StoredReply,
} from '../../src/http/reply-codec.ts'

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

const replies: fc.Arbitrary<StoredReply> = fc
  .record({
    status: fc.integer({ min: 100, max: 999 }),
    headers: fc.array(fc.tuple(fc.string(), fc.string({ unit: 'binary' })), { maxLength: 20 }),
    body: fc.uint8Array({ maxLength: 200 }),
    elided: fc.boolean(),
    schemaVersion: fc.integer({ min: 0, max: 65_535 }),
  })
  .map((reply) => (reply.elided ? { ...reply, body: new Uint8Array(0) } : reply))

/** Node's buffers are not equal to plain arrays in the eyes of the test runner. */
function plain(decode: ReplyDecode): ReplyDecode {
  if (decode.kind !== 'reply') return decode
  return { kind: 'reply', reply: { ...decode.reply, body: Uint8Array.from(decode.reply.body) } }
}

const unreadable = (detail: RegExp) => ({
  kind: 'unreadable',
  detail: expect.stringMatching(detail),
})
const flip = (bytes: Uint8Array): Uint8Array => bytes.map((byte) => byte ^ 0x55)
const fail = (): never => {
  throw new Error('no such key')
}

describe('the reply codec', () => {
  it('gives back what it was given', () => {
    fc.assert(
      fc.property(replies, (reply) => {
        expect(plain(decodeReply(encodeReply(reply)))).toEqual({ kind: 'reply', reply })
      }),
      { numRuns: 500 },
    )
  })

  it('writes version 1 the same way for ever', () => {
    const hex =
      '0100' +
      '0003' +
      '00c9' +
      '0002' +
      '000c00000010' +
      Buffer.from('content-typeapplication/json').toString('hex') +
      '00080000000b' +
      Buffer.from('location/payments/1').toString('hex') +
      '00ff0d0a'
    expect(Buffer.from(encodeReply(REPLY)).toString('hex')).toBe(hex)
  })

  it('reads from any place in a larger buffer, and copies no body', () => {
    const encoded = encodeReply(REPLY)
    const larger = new Uint8Array(encoded.length + 20)
    larger.set(encoded, 7)
    const decode = decodeReply(larger.subarray(7, 7 + encoded.length))
    expect(plain(decode)).toEqual({ kind: 'reply', reply: REPLY })
    expect(decode.kind === 'reply' && decode.reply.body.buffer).toBe(larger.buffer)
  })

  it('leaves an elided body out', () => {
    const decode = decodeReply(encodeReply({ ...REPLY, elided: true }))
    const reply = { ...REPLY, elided: true, body: new Uint8Array(0) }
    expect(plain(decode)).toEqual({ kind: 'reply', reply })
  })

  it('cannot read a reply cut short before its body', () => {
    const encoded = encodeReply(REPLY)
    for (let length = 0; length < encoded.length - REPLY.body.length; length += 1) {
      expect(decodeReply(encoded.subarray(0, length)).kind).toBe('unreadable')
    }
  })

  it.each([
    ['another version', [2, 0, 0, 0, 0, 200, 0, 0], /format version 2/],
    ['unknown flags', [1, 4, 0, 0, 0, 200, 0, 0], /flags 4/],
    ['no status', [1, 0, 0, 0, 0, 99, 0, 0], /status 99/],
    ['a header beyond the end', [1, 0, 0, 0, 0, 200, 0, 1, 0, 1, 255, 255, 255, 255], /too early/],
    ['a body where there is none', [1, 1, 0, 0, 0, 200, 0, 0, 7], /elided/],
    ['nothing', [], /only 0 bytes/],
  ])('cannot read %s, and says so', (_what, bytes, detail) => {
    expect(decodeReply(Uint8Array.from(bytes))).toEqual(unreadable(detail))
  })

  it('never throws on random bytes', () => {
    const anything = fc.uint8Array({ maxLength: 300 })
    const almost = anything.map((bytes) => Uint8Array.of(1, bytes.length & 3, ...bytes))
    fc.assert(
      fc.property(fc.oneof(anything, almost), (bytes) => {
        expect(decodeReply(bytes)).toEqual(decodeReply(bytes))
        expect(openReply(bytes, flip)).toEqual(openReply(bytes, flip))
      }),
      { numRuns: 3000 },
    )
  })
})

describe('sealing', () => {
  it('hides everything but the version and the flags', async () => {
    const encoded = encodeReply(REPLY)
    const sealed = await sealReply(encoded, flip)
    expect([...sealed.subarray(0, 2)]).toEqual([1, 2])
    expect([...sealed.subarray(2)]).toEqual([...flip(encoded.subarray(2))])
    expect(plain(await openReply(sealed, flip))).toEqual({ kind: 'reply', reply: REPLY })
  })

  it('answers at once where nothing is asynchronous', () => {
    const encoded = encodeReply(REPLY)
    expect(sealReply(encoded, undefined)).toBe(encoded)
    expect(sealReply(encoded, flip)).toBeInstanceOf(Uint8Array)
    expect(openReply(encoded, undefined)).toMatchObject({ kind: 'reply' })
    expect(openReply(sealReply(encoded, flip) as Uint8Array, flip)).toMatchObject({ kind: 'reply' })
  })

  it('waits for asynchronous hooks', async () => {
    const later = (bytes: Uint8Array) => Promise.resolve(flip(bytes))
    const sealed = await sealReply(encodeReply({ ...REPLY, elided: true }), later)
    const decode = await openReply(sealed, later)
    expect(decode).toMatchObject({ kind: 'reply', reply: { elided: true, status: 201 } })
  })

  it('keeps replies readable that were recorded before it was switched on', () => {
    expect(openReply(encodeReply(REPLY), fail)).toMatchObject({ kind: 'reply' })
  })

  it('makes a reply unreadable without the hook, or with one that fails', async () => {
    const sealed = await sealReply(encodeReply(REPLY), flip)
    expect(decodeReply(sealed)).toEqual(unreadable(/no open hook/))
    expect(openReply(sealed, undefined)).toEqual(unreadable(/no open hook/))
    expect(openReply(sealed, fail)).toEqual(unreadable(/no such key/))
    const rejected = await openReply(sealed, () => Promise.reject(new Error('no such key')))
    expect(rejected).toEqual(unreadable(/no such key/))
    expect(openReply(sealed, () => 'text' as never)).toEqual(unreadable(/no Uint8Array/))
    expect(openReply(sealed, () => Uint8Array.of(1, 2))).toEqual(unreadable(/too early/))
  })

  it('does not store what its hook did not make', () => {
    expect(() => sealReply(encodeReply(REPLY), () => undefined as never)).toThrow(/Uint8Array/)
  })
})
