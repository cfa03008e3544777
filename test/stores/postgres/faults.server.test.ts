import pg from 'pg'
import postgres from 'postgres'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { systemClock, type Clock } from '../../../src/core/time/clock.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import { postgresStore, type PostgresPool } from '../../../src/stores/postgres/index.ts'
import { startTcpProxy } from '../../servers/tcp-proxy.ts'
import { usePostgres } from './setup.ts'

const setupServer = usePostgres({ private: true })

type Tx = pg.Client | postgres.TransactionSql
type Send = (sql: string) => Promise<void>

/** Engines that pay in transactions of the store, and the receipts of all payments. */
async function setup() {
  const fixture = await setupServer()
  await fixture.open()
  await fixture.app.query('ALTER TABLE payment ADD COLUMN receipt text')
  const start = (pool: PostgresPool, options: Partial<EngineOptions> = {}) => {
    const store = postgresStore({ pool, prepare: false })
    const engine = createEngine({ store, onLapse: 'rerun', settleTimeoutMs: 20_000, ...options })
    onTestFinished(async () => {
      await engine.close({ graceMs: 5_000 })
      await store.close()
    })
    const request = (key: string) => ({
      scope: { tenant: 't', operation: 'pay' },
      key,
      fingerprint: 'f',
    })
    const runs: string[] = []
    /** Writes a row and returns its receipt. */
    const pay = (key: string, meanwhile?: (send: Send) => Promise<unknown>) =>
      engine.run(request(key), (context) => {
        runs.push(key)
        return context.transaction<Tx>(async (tx) => {
          const receipt = crypto.randomUUID()
          const send: Send = async (sql) =>
            void (await ('query' in tx ? tx.query(sql) : tx.unsafe(sql)))
          await send(`INSERT INTO payment VALUES ('${key}', '${receipt}')`)
          await meanwhile?.(send)
          return Buffer.from(receipt)
        })
      })
    /** Retries with the same key until there is an answer, as a client does. */
    const payUntilAnswered = async (key: string): Promise<string> => {
      for (;;) {
        const outcome = await pay(key).catch(() => undefined)
        if (outcome?.kind === 'ran' || outcome?.kind === 'replayed') return text(outcome.result)
        expect(outcome?.kind).not.toBe('unknown')
        await new Promise((resolve) => setTimeout(resolve, 20))
      }
    }
    return { engine, store, request, pay, payUntilAnswered, runs }
  }
  const receipts = async () =>
    new Map((await fixture.app.query('SELECT key, receipt FROM payment')).rows.map(pairOf))
  return { ...fixture, start, receipts }
}

function pairOf({ key, receipt }: { key: string; receipt: string }): [string, string] {
  return [key, receipt]
}

/** COMMIT as it is sent. The final zero byte distinguishes it from READ COMMITTED in BEGIN. */
const COMMIT = 'commit\0'

const text = (result: Uint8Array): string => Buffer.from(result).toString()

const DRIVERS = {
  pg: (url: string): PostgresPool => {
    const pool = new pg.Pool({ connectionString: url, connectionTimeoutMillis: 2_000 })
    pool.on('error', () => undefined)
    onTestFinished(() => pool.end())
    return pool
  },
  'postgres.js': (url: string): PostgresPool => {
    const sql = postgres(url, {
      onnotice: () => undefined,
      backoff: () => 0.05,
      // With fetch_types, a connection that is lost while it opens ends the process.
      fetch_types: false,
      connect_timeout: 1,
    })
    onTestFinished(() => sql.end({ timeout: 0 }))
    return sql
  },
}

const DRIVER_NAMES = Object.keys(DRIVERS) as (keyof typeof DRIVERS)[]

describe.each(DRIVER_NAMES)('lost connections, %s', (driver) => {
  async function setupProxy() {
    const fixture = await setup()
    const { hostname: host, port } = new URL(fixture.url)
    const proxy = await startTcpProxy({ host, port: Number(port) })
    onTestFinished(() => proxy.close())
    return { ...fixture, proxy, ...fixture.start(DRIVERS[driver](proxy.through(fixture.url))) }
  }

  it('returns the result if the answer to a successful COMMIT was lost', async () => {
    const { proxy, pay, receipts, runs } = await setupProxy()
    const cut = proxy.once('answer lost', COMMIT)
    const outcome = await pay('k')
    await cut
    expect(outcome).toMatchObject({ kind: 'ran' })
    expect(outcome.kind === 'ran' && text(outcome.result)).toBe((await receipts()).get('k'))
    expect(await pay('k')).toMatchObject({ kind: 'replayed' })
    expect(runs).toEqual(['k'])
  })

  it('fails and keeps no rows if the COMMIT never arrived', async () => {
    const { proxy, pay, payUntilAnswered, receipts, runs } = await setupProxy()
    const cut = proxy.once('request lost', COMMIT)
    await expect(pay('k')).rejects.toMatchObject({ code: 'STORE_FAILED' })
    await cut
    expect([...(await receipts())]).toEqual([])
    const receipt = await payUntilAnswered('k')
    expect([...(await receipts())]).toEqual([['k', receipt]])
    expect(runs).toEqual(['k', 'k'])
  })

  it.each(['request lost', 'answer lost'] as const)(
    'runs no handler for a claim without an answer, and runs it in the retry (%s)',
    async (mishap) => {
      const { proxy, pay, payUntilAnswered, receipts, runs } = await setupProxy()
      const cut = proxy.once(mishap, 'oncekey_record_claim')
      await expect(pay('k')).rejects.toMatchObject({ code: 'STORE_FAILED' })
      await cut
      expect(runs).toEqual([])
      const receipt = await payUntilAnswered('k')
      expect([...(await receipts())]).toEqual([['k', receipt]])
      expect(runs).toEqual(['k'])
    },
  )

  it.each(['request lost', 'answer lost'] as const)(
    'records a result although the connection was lost during its settlement (%s)',
    async (mishap) => {
      const { proxy, engine, request } = await setupProxy()
      const cut = proxy.once(mishap, 'oncekey_record_settle')
      const outcome = await engine.run(request('k'), () => Buffer.from('done'))
      await cut
      expect(outcome).toMatchObject({ kind: 'ran' })
      const again = await engine.run(request('k'), () => Buffer.from('never'))
      expect(again.kind === 'replayed' && text(again.result)).toBe('done')
    },
  )

  // The reset may hit a statement of the work, which then throws like a lost external call.
  it.each(['between two statements', 'during one'])(
    'rolls back work whose connection was lost %s, and runs it again in the retry',
    async (when) => {
      const { proxy, pay, payUntilAnswered, receipts } = await setupProxy()
      const cut = pay('k', async (send) => {
        const sleeping = when === 'during one' ? send('SELECT pg_sleep(20)') : undefined
        await new Promise((resolve) => setImmediate(resolve))
        proxy.cut()
        await sleeping
      })
      await expect(cut).rejects.toMatchObject({ code: 'STORE_FAILED' })
      expect([...(await receipts())]).toEqual([])
      const receipt = await payUntilAnswered('k')
      expect([...(await receipts())]).toEqual([['k', receipt]])
    },
  )
})

// The server is stopped without a checkpoint while clients write, and recovers from its log.
it.each(DRIVER_NAMES)(
  'keeps every answered payment when the server is stopped under load, %s',
  async (driver) => {
    const { server, start, url, receipts, column } = await setup()
    const { payUntilAnswered, engine, request } = start(DRIVERS[driver](url), { leaseMs: 3_000 })
    const answers = new Map<string, string>()
    const stopped = new AbortController()
    const clients = Array.from({ length: 12 }, async (_, client) => {
      for (let n = 0; !stopped.signal.aborted; n++) {
        const key = `${client}-${n}`
        answers.set(key, await payUntilAnswered(key))
      }
    })
    const answered = (more: number) => {
      const wanted = answers.size + more
      return vi.waitUntil(() => answers.size >= wanted, { timeout: 60_000 })
    }
    for (let stops = 0; stops < 2; stops++) {
      await answered(30)
      await server.stopAtOnce()
      await server.start()
    }
    await answered(30)
    stopped.abort()
    await Promise.all(clients)

    // Each answer has exactly one row, each row has its answer, and each key has a row.
    expect(await receipts()).toEqual(answers)
    expect(await column('SELECT count(*)::int FROM payment')).toEqual([answers.size])
    expect(
      await column(`SELECT count(*)::int FROM oncekey_record WHERE state <> 'completed'`),
    ).toEqual([0])
    for (const [key, receipt] of answers) {
      const outcome = await engine.run(request(key), () => Buffer.from('never'))
      expect([outcome.kind, outcome.kind === 'replayed' && text(outcome.result)]).toEqual([
        'replayed',
        receipt,
      ])
    }
  },
  120_000,
)

it.each([3_600_000, -3_600_000])(
  'uses the clock of the database on a node whose clock is off by %i ms',
  async (offMs) => {
    const { start, connect, column, app, receipts } = await setup()
    const skewed: Clock = { ...systemClock, nowMs: () => Date.now() + offMs }
    // No upkeep in the background, which could sweep as well.
    const quiet = { sweepEveryMs: 0, reapEveryMs: 0 }
    const right = start(connect(), quiet)
    const own = { ...quiet, clock: skewed, leaseMs: 60_000, retentionMs: 3_600_000 }
    const wrong = start(connect(), own)

    let release = () => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    const entered = Promise.withResolvers<void>()
    const first = right.pay('held', () => {
      entered.resolve()
      return held
    })
    await entered.promise
    // Both nodes see that the lease of one minute is alive, and no upkeep changes it.
    expect((await wrong.pay('held')).kind).toBe('in_progress')
    expect([await wrong.engine.sweep(), await wrong.engine.reap()]).toEqual([0, 0])
    release()
    const done = await first
    expect(done.kind).toBe('ran')

    const outcome = await wrong.pay('own')
    expect(outcome.kind).toBe('ran')
    expect((await right.pay('own')).kind).toBe('replayed')
    expect((await wrong.pay('held')).kind).toBe('replayed')
    const [keptMs] =
      await column(`SELECT extract(epoch FROM expires_at - completed_at)::float8 * 1000
      FROM oncekey_record WHERE key = 'own'`)
    expect(keptMs).toBeGreaterThanOrEqual(3_600_000)
    const [isNow] = await column(`SELECT bool_and(abs(extract(epoch FROM now() - created_at)) < 600)
      FROM oncekey_record`)
    expect(isNow).toBe(true)
    expect([await wrong.engine.sweep(), await wrong.engine.reap()]).toEqual([0, 0])
    // Either node sweeps a lease that has lapsed by the database's clock.
    await app.query(`UPDATE oncekey_record SET state = 'in_progress',
      lease_until = now() - interval '1 second' WHERE key = 'own'`)
    expect(await wrong.engine.sweep()).toBe(1)
    expect((await receipts()).size).toBe(2)
  },
)

it('renews leases while transactions use all connections that they may use', async () => {
  const { start, connect, column, receipts } = await setup()
  const { pay } = start(connect({ max: 5 }), { leaseMs: 1_500 })
  const opened: string[] = []
  const gate = Promise.withResolvers<void>()
  const keys = Array.from({ length: 8 }, (_, n) => `k${n}`)
  const paying = keys.map((key) =>
    pay(key, () => {
      opened.push(key)
      return gate.promise
    }),
  )
  await vi.waitUntil(() => opened.length === 3)
  const leases = async () =>
    new Map(
      (
        (await column(
          `SELECT json_build_array(key, extract(epoch FROM lease_until)) FROM oncekey_record`,
        )) as [string, number][]
      ).map((pair) => pair),
    )
  const before = await leases()
  expect(before.size).toBe(8)
  // The leases of keys that wait for a connection are renewed as well.
  await vi.waitUntil(
    async () => [...(await leases())].every(([key, until]) => until > before.get(key)!),
    { timeout: 20_000 },
  )
  expect(opened.length).toBe(3)
  gate.resolve()
  for (const outcome of await Promise.all(paying)) expect(outcome.kind).toBe('ran')
  expect((await receipts()).size).toBe(8)
})

it('answers duplicates and runs other keys while a transaction stays open', async () => {
  const { start, connect } = await setup()
  const { pay } = start(connect())
  const other = start(connect())
  const gate = Promise.withResolvers<void>()
  const entered = Promise.withResolvers<void>()
  const order: string[] = []
  const first = pay('held', () => {
    entered.resolve()
    return gate.promise
  })
  void first.then(({ kind }) => order.push(`the first ${kind}`))
  await entered.promise
  order.push(`its duplicate is ${(await pay('held')).kind}`)
  order.push(`its duplicate elsewhere is ${(await other.pay('held')).kind}`)
  const others = Array.from({ length: 40 }, (_, n) => (n % 2 ? pay : other.pay)(`other-${n}`))
  const kinds = new Set((await Promise.all(others)).map(({ kind }) => kind))
  order.push(`others ${[...kinds].join()}`)
  gate.resolve()
  await first
  expect(order).toEqual([
    'its duplicate is in_progress',
    'its duplicate elsewhere is in_progress',
    'others ran',
    'the first ran',
  ])
})
