/** The HTTP responses when the network fails during the transaction of a handler. */
import type pg from 'pg'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotencyOf } from '../../../src/adapters/express/index.ts'
import { postgresStore } from '../../../src/stores/postgres/index.ts'
import {
  caught,
  EXPRESSES,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  type ExpressModule,
} from '../../adapters/run-express.ts'
import { startTcpProxy } from '../../servers/tcp-proxy.ts'
import { usePostgres } from './setup.ts'

const openDatabase = usePostgres()

async function setup(express: ExpressModule) {
  const { open, connect, paid, url } = await openDatabase()
  await open()
  const { hostname: host, port } = new URL(url)
  const proxy = await startTcpProxy({ host, port: Number(port) })
  onTestFinished(() => proxy.close())
  const pool = connect({ connectionString: proxy.through(url) })
  const guard = guardOf({ store: postgresStore({ pool }) })
  onTestFinished(async () => {
    await guard.engine.close({ graceMs: 0 })
  })
  let runs = 0
  const app = express()
  app.post(
    '/',
    guard,
    caught(async (req) => {
      runs++
      await idempotencyOf(req).transaction<pg.Client>(async (tx) => {
        await tx.query('INSERT INTO payment VALUES ($1)', [`run ${runs}`])
        return { status: 201, body: { runs } }
      })
    }),
  )
  const { send } = await serve(app)
  return { send: () => send({ key: 'k' }), proxy, paid, runs: () => runs }
}

describe.each(EXPRESSES)('%s: transaction of a handler', (_name, express) => {
  it('returns 503 if BEGIN was lost, and the retry runs the handler', async () => {
    const { send, proxy, paid } = await setup(express)
    const cut = proxy.once('request lost', 'begin')
    expect(problemOf(await send())).toEqual([503, 'idempotency_store_unavailable'])
    await cut
    expect((await send()).status).toBe(201)
    expect(await paid()).toEqual(['run 2'])
  })

  it('returns 503 if COMMIT was lost, and the retry runs the handler', async () => {
    const { send, proxy, paid } = await setup(express)
    const cut = proxy.once('request lost', 'commit\0')
    expect(problemOf(await send())).toEqual([503, 'idempotency_store_unavailable'])
    await cut
    expect((await send()).status).toBe(201)
    expect(await paid()).toEqual(['run 2'])
  })

  it('returns the reply of a committed transaction if the answer to COMMIT was lost', async () => {
    const { send, proxy, paid, runs } = await setup(express)
    const cut = proxy.once('answer lost', 'commit\0')
    const first = await send()
    await cut
    expect([first.status, json(first)]).toEqual([201, { runs: 1 }])
    expect(header(await send(), 'idempotent-replayed')).toBe('true')
    expect(await paid()).toEqual(['run 1'])
    expect(runs()).toBe(1)
  })
})
