/** Fingerprints: which requests are the same, and the refusal of another one under a used key. */
import assert from 'node:assert/strict'
import { deflateSync, gunzipSync, gzipSync } from 'node:zlib'
import type { AdapterCase, CaseOptions } from './adapter-case.ts'
import type { Send } from './case-client.ts'
import {
  assertMismatch,
  assertProblem,
  assertRan,
  assertReplay,
  created,
  jsonReply,
  recordsOf,
  stage,
} from './case-stage.ts'

type Request = Omit<Send, 'port'>

const JSON_TYPE = { 'content-type': 'application/json' }
const BINARY = { 'content-type': 'application/octet-stream' }
const FORM = { 'content-type': 'application/x-www-form-urlencoded' }
const TEXT = { 'content-type': 'text/plain' }

const json = (body: string): Request => ({ body, headers: JSON_TYPE })
const packed = (encoding: string, body: Uint8Array): Request => ({
  body,
  headers: { ...BINARY, 'content-encoding': encoding },
})

export const requestCases: readonly AdapterCase[] = [
  other('another body', { json: { amount: 1 } }, { json: { amount: 2 } }),
  other('a body instead of none', {}, { json: {} }),
  other('no body instead of one', { json: { amount: 1 } }, {}),
  other('another query', { path: '/payments?to=ann' }, { path: '/payments?to=bob' }),
  other('a query instead of none', {}, { path: '/payments?dry=1' }),
  other('another media type', { body: 'a=1', headers: TEXT }, { body: 'a=1', headers: FORM }),
  other(
    'other bytes',
    { body: '\u0000\u0001', headers: BINARY },
    { body: '\0\0', headers: BINARY },
  ),
  other('another text', { body: 'pay ann', headers: TEXT }, { body: 'pay bob', headers: TEXT }),
  other('another form', { body: 'to=ann', headers: FORM }, { body: 'to=bob', headers: FORM }),
  other(
    'an integer too big for JavaScript that differs in its last digit',
    json('{"id":9007199254740993}'),
    json('{"id":9007199254740992}'),
  ),
  other('another file in a form', multipart('one', 'file A'), multipart('one', 'file B')),
  ...['path', 'method'].map((what): AdapterCase => ({
    name: `refuses another ${what} of one operation under a used key, and still replays`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        options: { operation: 'pay' },
        routes: [
          { path: '/payments', handle: () => created },
          { path: '/refunds', handle: () => created },
          { method: 'PATCH', path: '/payments', handle: () => created },
        ],
      })
      const first = await send({ key: 'key-1' })
      const changed = what === 'path' ? { path: '/refunds' } : { method: 'PATCH' }
      assertMismatch(await send({ key: 'key-1', ...changed }))
      assertReplay(await send({ key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  })),
  same('when its JSON has another member order or spacing', [
    json('{"amount":100,"to":{"name":"ann","id":7}}'),
    json('{ "to": { "id": 7, "name": "\\u0061nn" },\r\n  "amount": 1e2 }'),
  ]),
  same('when its media type has other parameters', [
    { body: '{"a":1}', headers: JSON_TYPE },
    { body: '{"a":1}', headers: { 'content-type': 'application/json; charset=utf-8' } },
  ]),
  same('when its multipart boundary differs', [
    multipart('first-boundary', 'the file'),
    multipart('----another.boundary', 'the file'),
  ]),
  same('when its upload is chunked', [
    json('{"amount":1}'),
    { chunks: ['{"amou', 'nt":', '1}'], headers: JSON_TYPE },
    { chunks: ['{"amount":1}'], headers: JSON_TYPE },
  ]),
  same('when its body is compressed', [
    { body: 'the same bytes', headers: BINARY },
    packed('gzip', gzipSync('the same bytes')),
    packed('gzip', gzipSync('the same bytes', { level: 0 })),
    packed('deflate', deflateSync('the same bytes')),
  ]),
  same('when the first body was compressed and its own is not', [
    packed('gzip', gzipSync('the same bytes')),
    { body: 'the same bytes', headers: BINARY },
  ]),
  same('when its form is the same', [{ body: 'to=ann&amount=1', headers: FORM }]),
  same('when its text is the same', [{ body: 'pay \u20ac 5 to ann', headers: TEXT }]),
  same('when both have no body', [{}, { headers: { 'content-length': '0' } }]),
  same('when its other headers differ', [
    { json: { a: 1 }, headers: { 'user-agent': 'one', 'x-attempt': '1' } },
    { json: { a: 1 }, headers: { 'user-agent': 'two', 'x-attempt': '2' } },
  ]),
  same(
    'when the fields in fingerprintFields are the same',
    [{ json: { amount: 5, sentAt: 'monday' } }, { json: { sentAt: 'tuesday', amount: 5 } }],
    { fingerprintFields: ['amount'] },
  ),
  other(
    'another value of a field in fingerprintFields',
    { json: { amount: 5, sentAt: 'monday' } },
    { json: { amount: 6, sentAt: 'monday' } },
    { fingerprintFields: ['amount'] },
  ),
  other(
    'another user of the same tenant',
    { headers: { 'x-user': 'ann' } },
    { headers: { 'x-user': 'bob' } },
    { principal: (head) => head.header('x-user') },
  ),
  ...[
    { what: 'JSON', request: { json: { amount: 1 } } },
    { what: 'a chunked upload', request: { chunks: ['{"amount"', ':1}'], headers: JSON_TYPE } },
  ].map(({ what, request }): AdapterCase => ({
    name: `passes ${what} to the handler as it would arrive without the guard`,
    async run(fixture) {
      const { send } = await stage(fixture, {
        handle: async (request) => jsonReply(await request.json()),
      })
      assert.equal((await send({ key: 'key-1', ...request })).text, '{"amount":1}')
    },
  })),
  ...[
    { what: 'bytes', request: { body: '\u0000\u00ff\r\n', headers: BINARY } },
    { what: 'text', request: { body: 'plain \u20ac text', headers: TEXT } },
    { what: 'compressed bytes', request: packed('gzip', gzipSync('unpacked')), sent: 'unpacked' },
  ].map(({ what, request, sent }): AdapterCase => ({
    name: `passes ${what} to the handler as they would arrive without the guard`,
    async run(fixture) {
      const got: Uint8Array[] = []
      const { send } = await stage(fixture, {
        handle: async (request) => {
          got.push(await request.bytes())
          return created
        },
      })
      assertRan(await send({ key: 'key-1', ...request }), 201)
      assert.equal(unpacked(got[0]!).toString(), sent ?? request.body)
    },
  })),
  tooLarge('by its Content-Length', { body: 'x'.repeat(101), headers: BINARY }),
  tooLarge('in chunks', { chunks: ['x'.repeat(60), 'x'.repeat(60)], headers: BINARY }),
  tooLarge('once unpacked', packed('gzip', gzipSync('x'.repeat(10_000)))),
  {
    name: 'distinguishes requests to one route with other parameters by their path',
    needs: 'templates',
    async run(fixture) {
      const { send, runs } = await stage(fixture, {
        routes: [
          { path: '/users/:id/payments', handle: () => created },
          { path: '/users/:id/refunds', handle: () => created },
        ],
      })
      const first = await send({ path: '/users/7/payments', key: 'key-1' })
      assertRan(first, 201)
      assertMismatch(await send({ path: '/users/8/payments', key: 'key-1' }))
      assertReplay(await send({ path: '/users/7/payments', key: 'key-1' }), first)
      assertRan(await send({ path: '/users/7/refunds', key: 'key-1' }), 201)
      assertRan(await send({ path: '/users/8/payments', key: 'key-2' }), 201)
      assert.equal(runs(), 3)
    },
  },
  {
    name: 'recognises its keys after a route parameter is renamed',
    needs: 'templates',
    async run(fixture) {
      const serve = (path: string) => stage(fixture, { routes: [{ path, handle: () => created }] })
      const before = await serve('/users/:id/payments')
      const first = await before.send({ path: '/users/7/payments', key: 'key-1' })
      const after = await serve('/users/:userId/payments')
      assertReplay(await after.send({ path: '/users/7/payments', key: 'key-1' }), first)
      assert.equal(after.runs(), 0)
    },
  },
]

/** The key belongs to the first request, before and after a different request under it. */
function other(
  what: string,
  request: Request,
  changed: Request,
  route: Partial<CaseOptions> = {},
): AdapterCase {
  return {
    name: `refuses ${what} under a used key, and still replays the original`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { route })
      const first = await send({ key: 'key-1', ...request })
      assertRan(first, 201)
      assertMismatch(await send({ key: 'key-1', ...changed }))
      assertReplay(await send({ key: 'key-1', ...request }), first)
      assertMismatch(await send({ key: 'key-1', ...changed }))
      assert.equal(runs(), 1)
      assertRan(await send({ key: 'key-2', ...changed }), 201)
    },
  }
}

function same(
  what: string,
  requests: readonly Request[],
  route: Partial<CaseOptions> = {},
): AdapterCase {
  return {
    name: `recognises a request as the same ${what}`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { route })
      const first = await send({ key: 'key-1', ...requests[0] })
      assertRan(first, 201)
      for (const request of requests) {
        assertReplay(await send({ key: 'key-1', ...request }), first)
      }
      assert.equal(runs(), 1)
    },
  }
}

function tooLarge(how: string, request: Request): AdapterCase {
  return {
    name: `refuses a request that is too large ${how}, and records nothing`,
    async run(fixture) {
      const { send, runs } = await stage(fixture, { route: { requestBytesMax: 100 } })
      const reply = await send({ key: 'key-1', ...request })
      assertProblem(reply, 413, 'idempotency_request_too_large')
      assert.match(
        reply.text,
        /exceeds \d+ bytes, the limit of this route \(option requestBytesMax\)/,
      )
      assert.equal(runs(), 0)
      assert.deepEqual(await recordsOf(fixture.store), [])
      assertRan(await send({ key: 'key-1', body: 'x'.repeat(100), headers: BINARY }), 201)
    },
  }
}

function multipart(boundary: string, file: string): Request {
  const type = `multipart/form-data; boundary="${boundary}"`
  const body = [
    `--${boundary}`,
    'Content-Disposition: form-data; name="amount"',
    '',
    '100',
    `--${boundary}`,
    'Content-Disposition: form-data; name="file"; filename="a.txt"',
    'Content-Type: text/plain',
    '',
    file,
    `--${boundary}--`,
    '',
  ]
  return { body: body.join('\r\n'), headers: { 'content-type': type } }
}

/** Some frameworks decompress a request body, others leave that to the handler. */
function unpacked(bytes: Uint8Array): Buffer {
  const isPacked = bytes[0] === 0x1f && bytes[1] === 0x8b
  return isPacked ? gunzipSync(bytes) : Buffer.from(bytes)
}
