import { expect, it } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import { withPg } from '../stores/postgres-join-tools.ts'
import { usePostgres } from '../stores/postgres-setup.ts'
import { seededRandom } from './random.ts'
import { startWorker } from './worker-process.ts'

const openDatabase = usePostgres()

const KILL_ROUNDS = 5
const SCOPE = { tenant: 'acme', operation: 'pay' }
const requestOf = (key: string) => ({ scope: SCOPE, key, fingerprint: 'f' })

async function setup() {
  const database = await openDatabase()
  const store = await database.open()
  const engine = createEngine({ store, onLapse: 'rerun', sweepEveryMs: 0, reapEveryMs: 0 })
  /** The database learns of a death when it next reads from the connection, or writes to it. */
  const buried = async () => {
    const left = `SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'killed'`
    await expect.poll(async () => (await database.column(left))[0]).toBe(0)
  }
  return { ...database, store, engine, buried }
}

const OUTCOMES = {
  claimed: false,
  begun: false,
  paid: false,
  completed: false,
  // The COMMIT is on its way: it may have arrived or not.
  committing: undefined,
  committed: true,
  told: true,
} as const

it.each(Object.entries(OUTCOMES))(
  'keeps key and row together when it is killed at "%s"',
  async (point, isPaid) => {
    const { url, app, connect, engine, buried, paid } = await setup()
    const worker = startWorker('postgres-join-worker.ts', [url, point, 'k'])
    await worker.written(1)
    await worker.kill()
    await buried()

    const record = await engine.read({ scope: SCOPE, key: 'k' })
    const rows = await paid()
    expect(rows.length === 1).toBe(record?.state === 'completed')
    if (isPaid !== undefined) expect(rows).toEqual(isPaid ? ['k'] : [])

    // Once its lease is over, the next attempt pays if nobody has, and only then.
    await app.query(`UPDATE oncekey_record SET lease_until = now() - interval '1 second'`)
    const outcome = await engine.run(requestOf('k'), (context) =>
      withPg(connect()).transact(async ({ tx, pay }) => {
        await pay('k')
        await context.completeIn(tx, Buffer.from('receipt of k'))
        return Buffer.from('receipt of k')
      }),
    )
    const kind = rows.length === 1 ? 'replayed' : 'ran'
    expect(outcome).toMatchObject({ kind, result: Buffer.from('receipt of k') })
    expect(await paid()).toEqual(['k'])
  },
)

// Another process holds the key, and its row, in a transaction that does not end.
it('answers duplicates and other keys at once while a transaction stays open', async () => {
  const { url, engine, app, buried, paid } = await setup()
  const worker = startWorker('postgres-join-worker.ts', [url, 'completed', 'k'])
  await worker.written(1)
  const other = (key: string) => engine.run(requestOf(key), () => Buffer.from('other'))
  const duplicates = await Promise.all(Array.from({ length: 10 }, () => other('k')))
  expect(new Set(duplicates.map(({ kind }) => kind))).toEqual(new Set(['in_progress']))
  const others = await Promise.all(Array.from({ length: 50 }, (_, n) => other(`other-${n}`)))
  expect(new Set(others.map(({ kind }) => kind))).toEqual(new Set(['ran']))

  // All of that while it was open; and with it goes what it wrote.
  const open = `SELECT 1 FROM pg_stat_activity
    WHERE application_name = 'killed' AND state = 'idle in transaction'`
  expect((await app.query(open)).rowCount).toBe(1)
  await worker.kill()
  await buried()
  expect(await paid()).toEqual([])
})

it('keeps keys and rows together, however its process is killed', async () => {
  const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
  console.info(`kill rounds with ONCEKEY_TEST_SEED=${seed}`)
  const random = seededRandom(seed)
  const { url, store, buried, paid } = await setup()
  const acknowledged: string[] = []
  for (let round = 0; round < KILL_ROUNDS; round++) {
    const worker = startWorker('postgres-join-worker.ts', [url, 'nowhere', `${seed + round}`])
    await worker.written(1 + Math.floor(random() * 15))
    await new Promise((resolve) => setTimeout(resolve, random() * 5))
    await worker.kill()
    acknowledged.push(...worker.lines)
  }
  await buried()
  const rows = (await paid()) as string[]
  const completed = await store.list({ state: 'completed', limit: 100_000 })
  expect(completed.map(({ key }) => key).toSorted()).toEqual(rows.toSorted())
  expect(rows).toEqual(expect.arrayContaining(acknowledged))
})
