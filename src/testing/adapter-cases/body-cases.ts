/** Bodies of replies: a replay has the same bytes, whether the reply was sent whole or streamed. */
import assert from 'node:assert/strict'
import type { AdapterCase, CaseReply } from './adapter-case.ts'
import { RawClient, rawRequest, sendOrCut } from './case-client.ts'
import {
  assertBytes,
  assertRan,
  assertReplay,
  gate,
  recordOf,
  REPLAYED,
  stage,
} from './case-stage.ts'

const BINARY = 'application/octet-stream'
const EVERY_BYTE = Uint8Array.from({ length: 512 }, (_, index) => index % 256)
const LARGE = Buffer.alloc(900_000, EVERY_BYTE.subarray(1, 252))
const CAP = 1_000

const bytes = (text: string): Uint8Array => Buffer.from(text)

export const bodyCases: readonly AdapterCase[] = [
  replaysWhole('replays binary bodies byte for byte', () => ({
    status: 200,
    headers: { 'content-type': BINARY },
    body: EVERY_BYTE,
  })),
  replaysWhole('replays text of every script byte for byte', () => ({
    status: 200,
    headers: { 'content-type': 'text/plain; charset=utf-8' },
    body: 'zażółć 支払い 💸 \u0000 \uFEFF end\r\n',
  })),
  replaysWhole('replays a JSON reply that is not valid UTF-8 byte for byte', () => ({
    status: 200,
    headers: { 'content-type': 'application/json' },
    body: Uint8Array.from([0x22, 0xff, 0xfe, 0xc3, 0x28, 0x22]),
  })),
  replaysWhole('replays a large body below replyBytesMax byte for byte', () => ({
    status: 200,
    headers: { 'content-type': BINARY },
    body: LARGE,
  })),
  replaysWhole('replays a body of exactly replyBytesMax bytes', () => ({
    status: 200,
    headers: { 'content-type': BINARY },
    body: new Uint8Array(CAP).fill(7),
  })),
  replaysWhole(
    'replays a reply that was sent in chunks',
    () => ({
      status: 201,
      headers: { 'content-type': BINARY },
      stream: chunksOf([EVERY_BYTE, bytes('middle'), EVERY_BYTE]),
    }),
    'streams',
  ),
  replaysWhole(
    'replays an empty stream',
    () => ({ status: 200, headers: { 'content-type': BINARY }, stream: chunksOf([]) }),
    'streams',
  ),
  replaysWithoutBody(
    'replays status and headers of a reply above replyBytesMax, and runs it once',
    () => ({
      status: 201,
      headers: { 'content-type': BINARY, location: '/payments/1', etag: '"whole"' },
      body: new Uint8Array(CAP + 1).fill(1),
    }),
  ),
  replaysWithoutBody(
    'replays status and headers of a stream above replyBytesMax, and runs it once',
    () => ({
      status: 201,
      headers: { 'content-type': BINARY, location: '/payments/1', etag: '"whole"' },
      stream: chunksOf([new Uint8Array(CAP - 1).fill(1), new Uint8Array(2).fill(1)]),
    }),
    'streams',
  ),
  {
    name: 'records a reply above replyBytesMax before its first byte is sent',
    needs: 'streams',
    async run(fixture) {
      const seen = gate()
      async function* stream(): AsyncGenerator<Uint8Array> {
        yield Buffer.alloc(CAP + 1, 'begun')
        await seen.passed
        yield bytes('ended')
      }
      const { port } = await stage(fixture, {
        options: { replyBytesMax: CAP },
        handle: () => ({ status: 200, headers: { 'content-type': BINARY }, stream: stream() }),
      })
      const client = await RawClient.open(port)
      client.write(rawRequest({ key: 'key-1' }))
      await client.until(/begun/)
      assert.equal((await recordOf(fixture.store)).state, 'completed')
      seen.open()
      assert.match(await client.until(/ended/), /ended/)
      client.close()
    },
  },
  {
    name: 'never replays part of a failed stream as a whole reply',
    needs: 'streams',
    async run(fixture) {
      let calls = 0
      const { port, send, runs } = await stage(fixture, {
        handle: () => ({
          status: 200,
          headers: { 'content-type': BINARY },
          stream:
            ++calls === 1
              ? failingStream([bytes('half')])
              : chunksOf([bytes('half'), bytes('rest')]),
        }),
      })
      const first = await sendOrCut({ port, key: 'key-1' })
      assert.ok(first === undefined || first.status >= 500, 'the client got a success')
      const second = await send({ key: 'key-1' })
      if (second.status === 409) return assert.equal(runs(), 1)
      assertRan(second, 200)
      assert.equal(second.text, 'halfrest')
      assert.equal(runs(), 2)
    },
  },
  {
    name: 'cuts a stream off when it fails above replyBytesMax, and does not run the handler again',
    needs: 'streams',
    async run(fixture) {
      const { port, send, runs } = await stage(fixture, {
        options: { replyBytesMax: CAP },
        handle: () => ({
          status: 200,
          headers: { 'content-type': BINARY },
          stream: failingStream([new Uint8Array(CAP + 1)]),
        }),
      })
      assert.equal(await sendOrCut({ port, key: 'key-1' }), undefined)
      const replay = await send({ key: 'key-1' })
      assert.equal(replay.status, 200)
      assert.equal(replay.headers['idempotent-body-elided'], 'true')
      assert.equal(runs(), 1)
    },
  },
]

async function* chunksOf(chunks: readonly Uint8Array[]): AsyncGenerator<Uint8Array> {
  for (const chunk of chunks) yield chunk
}

async function* failingStream(chunks: readonly Uint8Array[]): AsyncGenerator<Uint8Array> {
  for (const chunk of chunks) yield chunk
  throw new Error('the source of the stream failed')
}

function replaysWhole(name: string, reply: () => CaseReply, needs?: 'streams'): AdapterCase {
  return {
    name,
    ...(needs === undefined ? {} : { needs }),
    async run(fixture) {
      const isCapped = name.includes('exactly replyBytesMax')
      const { send, runs } = await stage(fixture, {
        handle: reply,
        options: isCapped ? { replyBytesMax: CAP } : {},
      })
      const first = await send({ key: 'key-1' })
      assertRan(first, reply().status)
      assertBytes(first.body, await bodyOf(reply()))
      assertReplay(await send({ key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  }
}

function replaysWithoutBody(name: string, reply: () => CaseReply, needs?: 'streams'): AdapterCase {
  return {
    name,
    ...(needs === undefined ? {} : { needs }),
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        handle: reply,
        options: { replyBytesMax: CAP },
      })
      const first = await send({ key: 'key-1' })
      assertRan(first, 201)
      assertBytes(first.body, await bodyOf(reply()))
      assert.equal(first.headers['idempotent-body-elided'], undefined)
      const replay = await send({ key: 'key-1' })
      assert.equal(replay.status, 201)
      assert.equal(replay.headers[REPLAYED], 'true')
      assert.equal(replay.headers['idempotent-body-elided'], 'true')
      assert.equal(replay.headers['location'], '/payments/1')
      assert.equal(replay.headers['etag'], undefined)
      const note = JSON.parse(replay.text) as Record<string, unknown>
      assert.equal(note['code'], 'idempotency_body_elided')
      assert.equal(runs(), 1)
    },
  }
}

async function bodyOf({ body, stream }: CaseReply): Promise<Buffer> {
  if (stream === undefined) return Buffer.from(body ?? '')
  const chunks: Uint8Array[] = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}
