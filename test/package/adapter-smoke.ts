/**
 * A user's program: Express, the packed adapter, and a client that sends each request twice. Runs
 * with its types stripped on every Node that the package supports. Prints the name of each check
 * that has passed.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { Readable } from 'node:stream'
import express, { type Request, type RequestHandler, type Response } from 'express'
import { memoryStore, singleTenant } from 'oncekey'
import { idempotency } from 'oncekey/express'

const REPLY_BYTES_MAX = 10_000
const BIG = 'x'.repeat(2 * REPLY_BYTES_MAX)

interface Reply {
  readonly status: number | undefined
  readonly headers: http.IncomingHttpHeaders
  readonly body: string
}

const runs = new Map<string, number>()
const guard = idempotency({
  store: memoryStore(),
  tenant: singleTenant,
  replyBytesMax: REPLY_BYTES_MAX,
})
const app = express()
app.use(express.json(), guard)

/** Adds a route that counts the runs of its handler. */
function route(name: string, handler: RequestHandler): void {
  app.post(`/${name}`, (req, res, next) => {
    runs.set(name, (runs.get(name) ?? 0) + 1)
    return handler(req, res, next)
  })
}

route('json', (req, res) => {
  res
    .status(201)
    .location('/payments/1')
    .json({ echo: req.body, run: runs.get('json') })
})
route('nothing', (_req, res) => {
  res.status(204).end()
})
route('write-end', (_req, res) => {
  res.type('text/plain')
  res.write('one ')
  res.write(Buffer.from('two '))
  res.end('three')
})
route('stream', (_req, res) => {
  Readable.from(['a', 'b', Buffer.from([0xc3, 0xa9])]).pipe(res.type('text/plain'))
})
route('big', (_req, res) => {
  res.type('text/plain').send(BIG)
})

// The client disconnects while this handler runs.
let proceed: () => void = () => undefined
const entered = new Promise<void>((resolve) => {
  route('slow', async (_req: Request, res: Response) => {
    resolve()
    await new Promise<void>((done) => {
      proceed = done
    })
    res.status(201).json({ paid: true })
  })
})

const server = http.createServer(app)
server.listen(0, '127.0.0.1')
await once(server, 'listening')
const { port } = server.address() as AddressInfo

function request(path: string): http.ClientRequest {
  const headers = { 'Idempotency-Key': `key-of-${path}`, 'Content-Type': 'application/json' }
  const options = { host: '127.0.0.1', port, path: `/${path}`, method: 'POST', headers }
  return http.request({ ...options, agent: false }).end('{"amountCents":1}')
}

async function post(path: string): Promise<Reply> {
  const [response] = (await once(request(path), 'response')) as [http.IncomingMessage]
  const chunks: Buffer[] = []
  for await (const chunk of response) chunks.push(chunk as Buffer)
  const { statusCode: status, headers } = response
  return { status, headers, body: Buffer.concat(chunks).toString() }
}

async function twice(path: string, status: number, body: string): Promise<void> {
  const first = await post(path)
  const replay = await post(path)
  assert.deepEqual([path, first.status, first.body], [path, status, body])
  assert.equal(first.headers['idempotent-replayed'], undefined)
  assert.deepEqual([replay.status, replay.body], [status, body])
  assert.equal(replay.headers['idempotent-replayed'], 'true')
  assert.equal(replay.headers['content-type'], first.headers['content-type'])
  assert.equal(replay.headers.location, first.headers.location)
  assert.equal(runs.get(path), 1)
  console.log(path)
}

await twice('json', 201, '{"echo":{"amountCents":1},"run":1}')
await twice('nothing', 204, '')
await twice('write-end', 200, 'one two three')
await twice('stream', 200, 'abé')

const whole = await post('big')
const elided = await post('big')
assert.deepEqual([whole.status, whole.body], [200, BIG])
assert.equal(elided.status, 200)
assert.equal(elided.headers['idempotent-body-elided'], 'true')
assert.equal(runs.get('big'), 1)
console.log('big')

const left = request('slow').on('error', () => undefined)
await entered
left.destroy()
assert.equal((await post('slow')).status, 409)
proceed()
let retried = await post('slow')
for (let tries = 0; retried.status === 409 && tries < 100; tries++) retried = await post('slow')
assert.deepEqual([retried.status, retried.body], [201, '{"paid":true}'])
assert.equal(runs.get('slow'), 1)
console.log('disconnect')

server.close()
server.closeAllConnections()
await guard.engine.close()
