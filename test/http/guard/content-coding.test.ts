import { brotliCompressSync, deflateRawSync, deflateSync, gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { acceptsCoding, decodeBody, decodeContent } from '../../../src/http/guard/content-coding.ts'
import { readableBy } from '../../../src/http/reply/readable-reply.ts'

const TEXT = Buffer.from('a body, a body, a body')

const CODED = [
  ['gzip', gzipSync(TEXT)],
  ['x-gzip', gzipSync(TEXT)],
  [' GZip ', gzipSync(TEXT)],
  ['deflate', deflateSync(TEXT)],
  ['br', brotliCompressSync(TEXT)],
] as const

describe('a content coding', () => {
  it.each(CODED)('the content coding %s is decoded', async (coding, bytes) => {
    const decoded = await decodeContent(bytes, coding, 1000)
    expect(decoded).toEqual({ kind: 'decoded', bytes: TEXT })
  })

  it.each(CODED)(
    'the content coding %s is decoded up to the limit, and not a byte beyond it',
    async (coding, bytes) => {
      expect(await decodeContent(bytes, coding, TEXT.length)).toMatchObject({ kind: 'decoded' })
      expect(await decodeContent(bytes, coding, TEXT.length - 1)).toEqual({ kind: 'too_large' })
      expect(await decodeContent(bytes, coding, 0)).toEqual({ kind: 'too_large' })
    },
  )

  it.each([
    ['identity', TEXT],
    ['zstd', TEXT],
    ['gzip, gzip', gzipSync(gzipSync(TEXT))],
    ['gzip', TEXT],
    ['gzip', gzipSync(TEXT).subarray(0, 12)],
    ['deflate', deflateRawSync(TEXT)],
    ['br', Buffer.from([0xff, 0xff, 0xff])],
    ['', TEXT],
    [undefined, TEXT],
  ])(
    'the content coding %s is left unchanged when it is unknown or broken',
    async (coding, bytes) => {
      expect(await decodeContent(bytes, coding, 1000)).toEqual({ kind: 'undecodable' })
    },
  )

  it.each([
    ['gzip', 'gzip', true],
    ['x-gzip', 'gzip', true],
    ['gzip', 'x-gzip', true],
    ['GZIP', 'gzip', true],
    ['deflate, gzip;q=0.5', 'gzip', true],
    ['gzip;q=0', 'gzip', false],
    ['gzip; q=0.000, *', 'gzip', false],
    ['*', 'gzip', true],
    ['*;q=0', 'gzip', false],
    ['br', 'gzip', false],
    ['', 'gzip', false],
    [undefined, 'gzip', false],
  ])('Accept-Encoding %j accepts %s: %s', (accepted, coding, takes) => {
    expect(acceptsCoding(accepted, coding)).toBe(takes)
  })
})

describe('the body of a request', () => {
  const bytes = gzipSync(TEXT)

  it('a request body is decoded to its form before the client encoded it', async () => {
    expect(await decodeBody({ kind: 'bytes', bytes }, 'gzip', 100)).toEqual({
      kind: 'bytes',
      bytes: TEXT,
    })
  })

  it.each([
    { kind: 'none' },
    { kind: 'value', value: { a: 1 } },
    { kind: 'bytes', bytes: new Uint8Array(0) },
    { kind: 'bytes', bytes, isDecoded: true },
    { kind: 'bytes', bytes: TEXT },
    { kind: 'aborted' },
  ] as const)('the request body %j stays unchanged', async (body) => {
    expect(await decodeBody(body, 'gzip', 100)).toBe(body)
  })

  it('a request body is too large if its decoded content is', async () => {
    const body = { kind: 'bytes', bytes: gzipSync(Buffer.alloc(10_000_000)) } as const
    expect(await decodeBody(body, 'gzip', 1_000_000)).toEqual({ kind: 'too_large' })
  })
})

describe('a recorded reply', () => {
  const reply = {
    status: 200,
    headers: [
      ['content-type', 'text/plain'],
      ['content-encoding', 'gzip'],
      ['content-digest', 'sha-256=:AAAA:'],
      ['repr-digest', 'sha-256=:AAAA:'],
      ['etag', '"strong"'],
      ['etag', 'W/"weak"'],
    ],
    body: gzipSync(TEXT),
  } as const

  it('a recorded reply is sent unchanged to a client that can decode it', async () => {
    expect(await readableBy('gzip', reply)).toBe(reply)
  })

  it('a recorded reply is decoded for a client that cannot decode it', async () => {
    expect(await readableBy('br', reply)).toEqual({
      status: 200,
      headers: [
        ['content-type', 'text/plain'],
        ['etag', 'W/"weak"'],
      ],
      body: TEXT,
    })
  })

  it('a recorded reply is sent unchanged when there is nothing to decode', async () => {
    for (const odd of [
      { ...reply, headers: [] },
      { ...reply, body: new Uint8Array(0) },
      { ...reply, body: TEXT },
      { ...reply, status: 206 },
    ]) {
      expect(await readableBy(undefined, odd)).toBe(odd)
    }
  })
})
