/**
 * A node of a small service, on the version of the package that is installed beside this file.
 * Prints `ready <port>` when it accepts requests, and `delivered <key>` for each relayed message.
 * Shuts down gracefully on SIGTERM.
 */
import { once } from 'node:events'
import { writeSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createEngine, singleTenant } from 'oncekey'
import { createOutbox, createRelay } from 'oncekey/durable'
import { idempotency, idempotencyOf } from 'oncekey/node'
import { openBackend, type Backend, type Tx } from './node-backend.ts'

const [engineName, place, nodeName] = process.argv.slice(2)
const backend: Backend = await openBackend(engineName!, place!)
const engine = createEngine({ store: backend.store })
const outbox = createOutbox({ engine })
const protect = idempotency({ engine, tenant: singleTenant })
const print = (line: string) => writeSync(1, `${line}\n`)

/** Each run gives another reply, so that a second run of a key is visible. */
const replyOf = (key: string) => ({ key, by: nodeName, run: crypto.randomUUID() })

/** An effect outside the store's transaction. A duplicate gets 409 while it runs. */
const plain = protect.with({ operation: 'plain' })(async (req, res) => {
  const { key } = idempotencyOf(req)
  await backend.insertEffect(key, nodeName!)
  res.writeHead(201, { 'content-type': 'application/json' }).end(JSON.stringify(replyOf(key)))
})

/** An effect and a message that commit with the key. A duplicate waits for the reply. */
const inTransaction = protect.with({
  operation: 'transaction',
  onLapse: 'rerun',
  whileInProgress: { waitMs: 10_000 },
})(async (req) => {
  const idempotent = idempotencyOf(req)
  const { key } = idempotent
  await idempotent.transaction<Tx>((tx) => {
    const reply = { status: 201, body: replyOf(key) }
    const inserted = backend.insertEffectIn(tx, key, nodeName!)
    const added = () => outbox.add(tx, 'receipt', { key }, { key })
    // The inserts of SQLite are synchronous, which keeps the transaction short.
    if (inserted === undefined) {
      void added()
      return reply
    }
    return inserted.then(added).then(() => reply)
  })
})

const relay = createRelay({
  engine,
  topics: {
    receipt: ({ key }) => void print(`delivered ${key}`),
  },
})

const server = createServer((req, res) => {
  if (req.url === '/plain') return plain(req, res)
  if (req.url === '/transaction') return inTransaction(req, res)
  res.writeHead(404).end()
})
const stop = new AbortController()
process.once('SIGTERM', () => stop.abort())
const relaying = relay.run(stop.signal)
server.listen(0, '127.0.0.1')
await once(server, 'listening')
print(`ready ${(server.address() as AddressInfo).port}`)

await once(stop.signal, 'abort')
server.close()
await once(server, 'close')
await relaying
await relay.close()
await engine.close()
await backend.close()
