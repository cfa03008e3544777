/**
 * A node of a small service, on the version of the package that is installed beside this file. It
 * prints `ready <port>` once it serves, `delivered <key>` for each message that it has relayed, and
 * ends in good order on SIGTERM.
 */
import { once } from 'node:events'
import { writeSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createEngine } from 'oncekey'
import { createOutbox, createRelay } from 'oncekey/durable'
import { idempotency, idempotencyOf, singleTenant } from 'oncekey/node'
import { openBackend, type Backend, type Tx } from './node-backend.ts'

const [engineName, place, nodeName] = process.argv.slice(2)
const backend: Backend = await openBackend(engineName!, place!)
const engine = createEngine({ store: backend.store })
const outbox = createOutbox({ engine })
const protect = idempotency({ engine, tenant: singleTenant })
const tell = (line: string) => writeSync(1, `${line}\n`)

/** No two runs give the same reply, so a key that ran twice shows. */
const replyOf = (key: string) => ({ key, by: nodeName, run: crypto.randomUUID() })

/** An effect outside the store's transaction. A duplicate is refused while it runs. */
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
    // SQLite keeps its transactions short by doing everything at once.
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
    receipt: ({ key }) => void tell(`delivered ${key}`),
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
tell(`ready ${(server.address() as AddressInfo).port}`)

await once(stop.signal, 'abort')
server.close()
await once(server, 'close')
await relaying
await relay.close()
await engine.close()
await backend.close()
