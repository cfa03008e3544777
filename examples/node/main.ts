/**
 * Transfers between accounts on a plain Node server, with one SQLite file:
 *
 *     npm run compile && npx node examples/node/main.ts
 *
 * Keys and accounts share the file, so that a transfer and its key commit together.
 */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { json } from 'node:stream/consumers'
import { idempotency, idempotencyOf } from 'oncekey/node'
import { sqliteStore, type SqliteTransaction } from 'oncekey/sqlite'

/** A retry that is up to a month late is refused, because it would move the money again. */
const REFUSE_LATE_MS = 30 * 24 * 60 * 60_000

const path = join(process.env['DATA_DIR'] || './data', 'node.db')
const store = sqliteStore({ path })

const protect = idempotency({
  store,
  tenant: tenantOf,
  // Safe here: all work of a transfer is in the transaction of the store.
  onLapse: 'rerun',
  afterExpiry: { refuseForMs: REFUSE_LATE_MS },
  onRequestError: answerError,
})

const transfer = protect.with({ operation: 'transfer' })(async (req) => {
  const input = toTransfer(await json(req))
  const key = idempotencyOf(req)
  const transferId = key.deterministicId('transfer')
  // The reply is committed with the rows, and sent after the commit. The handler sends nothing.
  await key.transaction<SqliteTransaction>((tx) => {
    prepareTables(tx)
    const { balance } = balanceOf(tx, input.from)
    if (balance < input.amount) return { status: 422, body: { error: 'not enough money' } }
    move(tx, input)
    return { status: 201, body: { transferId, balance: balance - input.amount } }
  })
})

const server = createServer((req, res) => {
  if (tokenOf(req) === undefined) return void res.writeHead(401).end()
  if (req.method === 'POST' && req.url === '/transfers') return transfer(req, res)
  res.writeHead(404).end()
})

server.listen(Number(process.env['PORT'] ?? 3000), '127.0.0.1')
await once(server, 'listening')
console.log(`listening on http://127.0.0.1:${(server.address() as AddressInfo).port}`)

for (const signal of ['SIGTERM', 'SIGINT'] as const) {
  process.once(signal, () => void stop())
}

/** In this order: new requests, work in progress, its records, the file. */
async function stop(): Promise<void> {
  const closed = once(server, 'close')
  server.close()
  server.closeIdleConnections()
  await closed
  await protect.close()
  await store.close()
}

interface Transfer {
  readonly from: string
  readonly to: string
  readonly amount: number
}

function toTransfer(body: unknown): Transfer {
  const { from, to, amount } = (body ?? {}) as Partial<Transfer>
  const isValid = typeof from === 'string' && typeof to === 'string' && Number.isSafeInteger(amount)
  if (!isValid || amount! <= 0) throw new InputError('send { from, to, amount }')
  return { from, to, amount: amount! }
}

function prepareTables(tx: SqliteTransaction): void {
  tx.exec('CREATE TABLE IF NOT EXISTS account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL)')
  tx.exec("INSERT OR IGNORE INTO account (id, balance) VALUES ('ann', 100), ('bob', 0)")
}

function balanceOf(tx: SqliteTransaction, id: string): { balance: number } {
  const row = tx.prepare('SELECT balance FROM account WHERE id = ?').get(id)
  return { balance: Number(row?.['balance'] ?? 0) }
}

function move(tx: SqliteTransaction, { from, to, amount }: Transfer): void {
  tx.prepare('UPDATE account SET balance = balance - ? WHERE id = ?').run(amount, from)
  tx.prepare('UPDATE account SET balance = balance + ? WHERE id = ?').run(amount, to)
}

/** Demo. A real service looks the token up; a key belongs to the account of the token. */
function tokenOf(req: IncomingMessage): string | undefined {
  return /^Bearer (\w+)$/.exec(req.headers.authorization ?? '')?.[1]
}

function tenantOf(req: IncomingMessage): string {
  return tokenOf(req) ?? ''
}

class InputError extends Error {}

/** An error of the client is answered and recorded; any other error is a failure of the server. */
function answerError(error: unknown, _req: IncomingMessage, res: ServerResponse): void {
  if (res.headersSent) return void res.destroy()
  const isInput = error instanceof InputError || error instanceof SyntaxError
  if (!isInput) console.error(error)
  res.writeHead(isInput ? 400 : 500, { 'Content-Type': 'application/json' })
  res.end(JSON.stringify({ error: isInput ? error.message : 'internal' }))
}
