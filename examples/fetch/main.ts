/**
 * A web-standard handler, as in Next.js, Bun, Deno and Workers, on a plain Node server.
 *
 *     npm run compile && npx node examples/fetch/main.ts
 */
import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { sqliteStore } from 'oncekey/sqlite'
import { idempotencyOf, withIdempotency } from 'oncekey/fetch'

const store = sqliteStore({ path: process.env['DATA_FILE'] ?? 'data/fetch.db' })
let payments = 0

// In Next.js this is `export const POST = …` in app/api/payments/route.ts.
const pay = withIdempotency(
  async (request) => {
    const { amount } = (await request.json()) as { amount: number }
    // The provider gets the same key on every attempt, so it also charges once.
    const providerKey = idempotencyOf(request).deterministicId('charge')
    payments++
    return Response.json({ amount, providerKey, payments }, { status: 201 })
  },
  {
    store,
    // Replace this: take the tenant from a verified token, never from the body.
    tenant: (request) => request.headers.get('authorization') ?? '',
    operation: 'pay',
  },
)

const server = createServer((req, res) => {
  if (req.method !== 'POST' || req.url !== '/payments') return void res.writeHead(404).end()
  const answered = async () => {
    const response = await pay(toRequest(req))
    res.writeHead(response.status, [...response.headers].flat())
    if (response.body === null) return void res.end()
    await pipeline(Readable.fromWeb(response.body), res)
  }
  answered().catch((error: unknown) => {
    console.error(error)
    if (res.headersSent) res.destroy()
    else res.writeHead(500).end()
  })
})

/** Converts to a web Request, which other runtimes provide. */
function toRequest(req: IncomingMessage): Request {
  const headers = new Headers()
  for (const [name, values] of Object.entries(req.headersDistinct)) {
    for (const value of values ?? []) headers.append(name, value)
  }
  const url = new URL(req.url ?? '/', 'http://localhost')
  const init = { method: req.method ?? 'GET', headers }
  if (init.method === 'GET' || init.method === 'HEAD') return new Request(url, init)
  const body = Readable.toWeb(req) as globalThis.ReadableStream
  return new Request(url, { ...init, body, duplex: 'half' })
}

server.listen(Number(process.env['PORT'] ?? 3000), '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${(server.address() as AddressInfo).port}`)
})

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void stop())
}

/** Lets requests in progress end, and waits for handlers whose clients have disconnected. */
async function stop(): Promise<void> {
  server.close()
  server.closeIdleConnections()
  await once(server, 'close')
  await pay.close({ graceMs: 10_000 })
  await store.close()
}
