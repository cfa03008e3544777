/** Headers of a reply that are repeated in its replay. */
import assert from 'node:assert/strict'
import { gzipSync } from 'node:zlib'
import type { AdapterCase, CaseReply } from './adapter-case.ts'
import type { Received } from './case-client.ts'
import { assertRan, assertReplay, EXPIRES, REPLAYED, stage, type Setup } from './case-stage.ts'

export const headerCases: readonly AdapterCase[] = [
  headers('replays the headers that describe the reply', {
    sent: {
      'cache-control': 'private, max-age=60',
      'content-disposition': 'attachment; filename="a.txt"',
      'content-language': 'de',
      'content-location': '/payments/1',
      'content-type': 'text/plain; charset=utf-8',
      etag: '"v1"',
      'last-modified': 'Thu, 01 Jan 2026 00:00:00 GMT',
      link: '</payments/1>; rel="self"',
      location: '/payments/1',
      'retry-after': '7',
      vary: 'accept',
    },
    repeated: 'all',
  }),
  headers('replays several lines of one header', {
    sent: { link: ['</a>; rel="next"', '</b>; rel="prev"'] },
    repeated: 'all',
  }),
  headers('replays no header that describes the connection or the caller', {
    sent: { 'x-request-id': 'r-1', 'x-ratelimit-remaining': '9', 'www-authenticate': 'Basic' },
    repeated: [],
  }),
  headers('replays the headers that storeHeaders names and the default headers', {
    sent: { 'X-Payment-Id': 'pay_1', 'x-request-id': 'r-1', location: '/payments/1' },
    repeated: ['X-Payment-Id', 'location'],
    setup: { options: { storeHeaders: ['x-payment-id'] } },
  }),
  headers('sets cookies with the first reply and with no replay', {
    sent: { 'set-cookie': ['session=secret; HttpOnly', 'theme=dark'], location: '/payments/1' },
    repeated: ['location'],
  }),
  {
    name: 'replays an encoded body together with its encoding',
    async run(fixture) {
      const body = gzipSync('encoded by the handler')
      const { send } = await stage(fixture, {
        handle: () => ({
          status: 200,
          headers: { 'content-type': 'text/plain', 'content-encoding': 'gzip' },
          body,
        }),
      })
      const request = { key: 'key-1', headers: { 'accept-encoding': 'gzip' } }
      const first = await send(request)
      assertRan(first, 200)
      assert.deepEqual(first.body, body)
      const replay = await send(request)
      assertReplay(replay, first)
      assert.equal(replay.headers['content-encoding'], 'gzip')
    },
  },
  {
    name: 'sends the length of each reply',
    async run(fixture) {
      const { send } = await stage(fixture, {
        handle: () => ({ status: 200, body: 'twelve bytes' }),
      })
      await send({ key: 'key-1' })
      const replay = await send({ key: 'key-1' })
      assert.equal(replay.text, 'twelve bytes')
      const length = replay.headers['content-length']
      const isChunked = replay.headers['transfer-encoding'] === 'chunked'
      assert.ok(length === '12' || (length === undefined && isChunked))
    },
  },
  {
    name: 'does not let a handler mark its first reply as a replay',
    async run(fixture) {
      const { send } = await stage(fixture, {
        handle: () => ({ status: 200, headers: { 'idempotency-expires': 'never' }, body: 'x' }),
        options: { retentionMs: 3_600_000 },
      })
      const expires = new Date(fixture.clock.nowMs() + 3_600_000).toUTCString()
      const first = await send({ key: 'key-1' })
      assert.equal(first.headers[EXPIRES], expires)
      assert.equal((await send({ key: 'key-1' })).headers[EXPIRES], expires)
    },
  },
]

interface HeaderCase {
  readonly sent: NonNullable<CaseReply['headers']>
  /** Names of the headers that the replay repeats. */
  readonly repeated: readonly string[] | 'all'
  readonly setup?: Setup
}

function headers(name: string, { sent, repeated, setup }: HeaderCase): AdapterCase {
  return {
    name,
    async run(fixture) {
      const { send } = await stage(fixture, {
        ...setup,
        handle: () => ({ status: 200, headers: sent, body: 'same' }),
      })
      const first = await send({ key: 'key-1' })
      const replay = await send({ key: 'key-1' })
      assert.equal(first.headers[REPLAYED], undefined)
      assert.equal(replay.headers[REPLAYED], 'true')
      for (const [header, value] of Object.entries(sent)) {
        const expected = [value].flat().join(', ')
        assert.equal(valueOf(first, header), expected)
        const isRepeated = repeated === 'all' || repeated.includes(header)
        assert.equal(valueOf(replay, header), isRepeated ? expected : undefined, header)
      }
      assert.deepEqual(replay.body, first.body)
    },
  }
}

const valueOf = ({ headers }: Received, name: string): string | undefined =>
  headers[name.toLowerCase()]
