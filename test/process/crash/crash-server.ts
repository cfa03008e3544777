/**
 * An Express server on one SQLite file, with a route for each kind of work. An argument can make it
 * stop at one point, where the test kills it.
 */
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import express, { type Request, type Response } from 'express'
import { idempotency, idempotencyOf } from '../../../src/adapters/express/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import {
  LEASE_MS,
  MODES,
  StopPoint,
  actOutside,
  report,
  stoppingStore,
  type Mode,
} from './crash-points.ts'

const [path, effectsPath, point, sweepEveryMs] = process.argv.slice(2)
const still = new StopPoint(point!)
const engine = createEngine({
  store: stoppingStore(sqliteStore({ path: path! }), still),
  leaseMs: LEASE_MS,
  sweepEveryMs: Number(sweepEveryMs),
  reapEveryMs: 0,
})

/** Every run has a different result, so that a replay can be distinguished from another run. */
function reply(res: Response, result: string): void {
  res.status(201).location(`/payments/${result}`).json({ result })
}

async function transact(req: Request, res: Response): Promise<void> {
  await still.at('entered')
  const context = idempotencyOf(req)
  const result = randomUUID()
  await context.transaction<SqliteTransaction>(async (tx) => {
    const insert = tx.prepare('INSERT INTO payment (key, result) VALUES (?, ?)')
    insert.run(context.key, result)
    reply(res, result)
    await still.at('acted')
  })
}

async function actAndReply(req: Request, res: Response): Promise<void> {
  await still.at('entered')
  const { key, downstreamKey } = actable(req)
  const result = randomUUID()
  actOutside(effectsPath!, `${key} ${downstreamKey} ${result}`)
  await still.at('acted')
  reply(res, result)
}

/** Has its effect, then sends more than the store keeps of a reply, and does not finish it. */
async function exportAll(req: Request, res: Response): Promise<void> {
  const { key, downstreamKey } = actable(req)
  actOutside(effectsPath!, `${key} ${downstreamKey} export`)
  res.status(200).type('text/csv')
  res.write('id,amount\n'.repeat(100))
  await still.at('sending')
  res.end()
}

function actable(req: Request): { key: string; downstreamKey: string } {
  const context = idempotencyOf(req)
  return { key: context.key, downstreamKey: context.downstreamKey() }
}

const guardOf = (mode: Mode) =>
  idempotency({
    engine,
    tenant: () => 't',
    operation: mode,
    onLapse: mode === 'plain' ? 'unknown' : 'rerun',
    replyBytesMax: 500,
  })

const app = express()
for (const mode of MODES) {
  app.post(`/${mode}`, guardOf(mode), mode === 'transaction' ? transact : actAndReply)
}
app.post('/export', guardOf('plain'), exportAll)
const server = createServer(app)
server.listen(0, '127.0.0.1', () => report({ port: (server.address() as AddressInfo).port }))
