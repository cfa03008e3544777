/** Connections: clients that disconnect, and connections that stay open. */
import assert from 'node:assert/strict'
import type { AdapterCase, AdapterFixture, CaseHandler, CaseOptions } from './adapter-case.ts'
import { RawClient, rawRequest, type Send } from './case-client.ts'
import {
  assertInProgress,
  assertRan,
  created,
  gate,
  jsonReply,
  recordOf,
  recordsOf,
  REPLAYED,
  stage,
  type Stage,
} from './case-stage.ts'

const PAYMENT = { key: 'key-1', json: { amount: 5, to: 'ann' } }
const WAYS = [
  { how: 'resets its connection', leave: (client: RawClient) => client.cut() },
  { how: 'closes its connection', leave: (client: RawClient) => client.close() },
]

export const connectionCases: readonly AdapterCase[] = [
  ...WAYS.flatMap(({ how, leave }) => [
    disconnectCase(`finishes the work of a client that ${how}, and replays it to the retry`, {
      leave,
      handle: async (request, gone) => {
        await gone
        return jsonReply({ got: await request.json() }, 201)
      },
      body: '{"got":{"amount":5,"to":"ann"}}',
    }),
    disconnectCase(`finishes an empty reply for a client that ${how}`, {
      leave,
      handle: async (_request, gone) => {
        await gone
        return { status: 204 }
      },
      body: '',
    }),
  ]),
  {
    ...disconnectCase('finishes the stream for a client that resets its connection in the middle', {
      leave: (client) => client.cut(),
      handle: (_request, gone) => ({
        status: 200,
        headers: { 'content-type': 'text/plain' },
        stream: (async function* () {
          yield Buffer.from('before, ')
          await gone
          yield Buffer.from('after')
        })(),
      }),
      body: 'before, after',
    }),
    needs: 'streams',
  },
  {
    name: 'keeps the key of a disconnected client while its handler still runs',
    needs: 'disconnects',
    async run(fixture) {
      const { app, client, handlerGone } = await startedRequest(
        fixture,
        async (_request, gone) => {
          await gone
          return created
        },
        'conflict',
      )
      client.cut()
      await settledSockets(app)
      assertInProgress(await app.send(PAYMENT))
      assert.equal((await recordOf(fixture.store)).state, 'in_progress')
      handlerGone.open()
      assert.equal(app.runs(), 1)
    },
  },
  ...[
    { how: 'with a Content-Length', head: 'Content-Length: 100\r\n', part: '{"amount"' },
    { how: 'in chunks', head: 'Transfer-Encoding: chunked\r\n', part: '9\r\n{"amount"\r\n' },
  ].map(({ how, head, part }): AdapterCase => ({
    name: `neither runs nor records an upload ${how} that was cut off`,
    needs: 'disconnects',
    async run(fixture) {
      const app = await withPing(fixture, () => created)
      const client = await RawClient.open(app.port)
      const lines = 'Host: localhost\r\nX-Tenant: tenant-1\r\nIdempotency-Key: key-1\r\n'
      const type = 'Content-Type: application/json\r\n'
      client.write(`POST /payments HTTP/1.1\r\n${lines}${type}${head}\r\n${part}`)
      await settledSockets(app)
      client.cut()
      await settledSockets(app)
      assert.equal(app.runs(), 0)
      assert.deepEqual(await recordsOf(fixture.store), [])
      assertRan(await app.send(PAYMENT), 201)
    },
  })),
  {
    name: 'answers a run, a replay and a refusal over one keep-alive connection',
    async run(fixture) {
      const { port, runs } = await stage(fixture, {})
      const client = await RawClient.open(port)
      client.write(rawRequest(PAYMENT))
      await client.until(/created/)
      client.write(rawRequest(PAYMENT))
      await client.until(/created[^]*created/)
      client.write(rawRequest({ ...PAYMENT, json: { amount: 6 } }))
      const all = await client.until(/different_payload/)
      assert.deepEqual(statusesOf(all), ['201', '201', '422'])
      assert.equal(runs(), 1)
      client.close()
    },
  },
  {
    name: 'answers pipelined requests in order',
    async run(fixture) {
      const { port, runs } = await stage(fixture, {
        handle: async (request) => jsonReply(await request.json(), 201),
      })
      const client = await RawClient.open(port)
      const requests = ['one', 'two', 'three'].map((key) => rawRequest({ key, json: { key } }))
      client.write(requests.join(''))
      const all = await client.until(/one[^]*two[^]*three/)
      assert.deepEqual(statusesOf(all), ['201', '201', '201'])
      assert.ok(all.indexOf('"one"') < all.indexOf('"two"'))
      assert.ok(all.indexOf('"two"') < all.indexOf('"three"'))
      assert.equal(runs(), 3)
      client.close()
    },
  },
  {
    name: 'sends 100 Continue to a client that waits for it before it sends the body',
    async run(fixture) {
      const { port, runs } = await stage(fixture, {
        handle: async (request) => jsonReply(await request.json(), 201),
      })
      const client = await RawClient.open(port)
      const headers = { Expect: '100-continue', Connection: 'close' }
      const [head, body] = rawRequest({ ...PAYMENT, headers }).split('\r\n\r\n')
      client.write(`${head}\r\n\r\n`)
      assert.match(await client.until(/\r\n\r\n/), /^HTTP\/1\.1 100 /)
      client.write(body!)
      const all = await client.until(/(?!)/)
      assert.deepEqual(statusesOf(all), ['100', '201'])
      assert.equal(runs(), 1)
    },
  },
]

interface DisconnectCase {
  readonly leave: (client: RawClient) => void
  readonly handle: Handle
  /** Body of the reply to the retry. */
  readonly body: string
}

type Handle = (request: Parameters<CaseHandler>[0], gone: Promise<void>) => ReturnType<CaseHandler>

function disconnectCase(name: string, { leave, handle, body }: DisconnectCase): AdapterCase {
  return {
    name,
    needs: 'disconnects',
    async run(fixture) {
      const { app, client, handlerGone } = await startedRequest(fixture, handle)
      leave(client)
      await settledSockets(app)
      handlerGone.open()
      const retry = await app.send(PAYMENT)
      assert.ok(retry.status < 300, retry.text)
      assert.equal(retry.headers[REPLAYED], 'true')
      assert.equal(retry.text, body)
      assert.equal(app.runs(), 1)
    },
  }
}

/** Opens a client whose request has reached its handler. */
async function startedRequest(
  fixture: AdapterFixture,
  handle: Handle,
  whileInProgress?: CaseOptions['whileInProgress'],
) {
  const entered = gate()
  const handlerGone = gate()
  const handleOnce: CaseHandler = (request) => {
    entered.open()
    return handle(request, handlerGone.passed)
  }
  const app = await withPing(fixture, handleOnce, whileInProgress)
  const client = await RawClient.open(app.port)
  client.write(rawRequest(PAYMENT))
  await entered.passed
  return { app, client, handlerGone }
}

/** Serves a route whose retries wait by default, and a ping route. */
async function withPing(
  fixture: AdapterFixture,
  handle: CaseHandler,
  whileInProgress: CaseOptions['whileInProgress'] = { waitMs: 30_000 },
): Promise<Stage> {
  let runs = 0
  const { port, send } = await stage(fixture, {
    routes: [
      {
        path: '/payments',
        options: { whileInProgress },
        handle: (request) => {
          runs++
          return handle(request)
        },
      },
      { method: 'GET', path: '/ping', options: false, handle: () => ({ status: 204 }) },
    ],
  })
  return { port, send, runs: () => runs }
}

/** Waits one round trip: then the server has handled earlier events of its sockets. */
async function settledSockets({ send }: Stage): Promise<void> {
  const ping: Omit<Send, 'port'> = { method: 'GET', path: '/ping' }
  for (let trip = 0; trip < 2; trip++) assert.equal((await send(ping)).status, 204)
}

function statusesOf(received: string): string[] {
  return [...received.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => status!)
}
