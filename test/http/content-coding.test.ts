import { brotliCompressSync, deflateRawSync, deflateSync, gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { acceptsCoding, decodeContent } from '../../src/http/content-coding.ts'
import { decodeBody } from '../../src/http/decode-body.ts'
import { readableBy } from '../../src/http/readable-reply.ts'

const TEXT = Buffer.from('a body, a body, a body')

const CODED = [
  ['gzip', gzipSync(TEXT)],
  ['x-gzip', gzipSync(TEXT)],
  [' GZip ', gzipSync(TEXT)],
  ['deflate', deflateSync(TEXT)],
  ['br', brotliCompressSync(TEXT)],
] as const

describe('a content coding', () => {
  it.each(CODED)('%s is undone', async (coding, bytes) => {
    const decoded = await decodeContent(bytes, coding, 1000)
    expect(decoded).toEqual({ kind: 'decoded', bytes: TEXT })
  })

  it.each(CODED)('%s is undone up to a bound, and not a byte beyond it', async (coding, bytes) => {
    expect(await decodeContent(bytes, coding, TEXT.length)).toMatchObject({ kind: 'decoded' })
    expect(await decodeContent(bytes, coding, TEXT.length - 1)).toEqual({ kind: 'too_large' })
    expect(await decodeContent(bytes, coding, 0)).toEqual({ kind: 'too_large' })
  })

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
  ])('%s is left alone where it is none of ours, or broken', async (coding, bytes) => {
    expect(await decodeContent(bytes, coding, 1000)).toEqual({ kind: 'undecodable' })
  })

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
  ])('Accept-Encoding %j takes %s: %s', (accepted, coding, takes) => {
    expect(acceptsCoding(accepted, coding)).toBe(takes)
  })
})

describe('the body of a request', () => {
  const bytes = gzipSync(TEXT)

  it('is what it was before the client encoded it', async () => {
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
  ] as const)('stays as it is: %j', async (body) => {
    expect(await decodeBody(body, 'gzip', 100)).toBe(body)
  })

  it('is too large if what it holds is', async () => {
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

  it('is repeated as it is to a client that can read it', async () => {
    expect(await readableBy('gzip', reply)).toBe(reply)
  })

  it('is decoded for one that cannot, without what describes the coded bytes', async () => {
    expect(await readableBy('br', reply)).toEqual({
      status: 200,
      headers: [
        ['content-type', 'text/plain'],
        ['etag', 'W/"weak"'],
      ],
      body: TEXT,
    })
  })

  it('is repeated as it is where there is nothing that can be undone', async () => {
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
