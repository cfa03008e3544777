// Takes about 17 s.
import { expect, it, onTestFinished } from 'vitest'
import { startPgbouncer } from '../servers/pgbouncer.ts'
import { usePostgres } from '../stores/postgres/setup.ts'
import { seededRandom } from './random.ts'
import { startWorker } from './worker-process.ts'

const setup = usePostgres()

const RACED_KEYS = 1000
const KILL_ROUNDS = 8

const RACES = [
  { processes: 20, where: 'straight', racing: (url: string) => [url, `${RACED_KEYS}`] },
  {
    // Starting processes takes most of the time; six are enough to share connections.
    processes: 6,
    where: 'behind pgbouncer in transaction mode',
    racing: async (url: string) => {
      const bouncer = await startPgbouncer(url)
      onTestFinished(() => bouncer.close())
      return [bouncer.url, `${RACED_KEYS}`, 'pgbouncer']
    },
  },
]

it.each(RACES)(
  'gives each of 1,000 keys to one of $processes PostgreSQL processes, $where',
  async ({ processes, racing }) => {
    const { url, open } = await setup()
    const store = await open()
    const args = ['race', ...(await racing(url))]
    const racers = Array.from({ length: processes }, () => startWorker('postgres-worker.ts', args))
    await Promise.all(racers.map((racer) => racer.written(1)))
    for (const racer of racers) racer.tell('go')
    const codes = await Promise.all(racers.map((racer) => racer.ended))
    expect(codes).toEqual(racers.map(() => 0))

    const keys = Array.from({ length: RACED_KEYS }, (_, n) => `key-${n}`).toSorted()
    expect(racers.flatMap((racer) => racer.lines.slice(1)).toSorted()).toEqual(keys)
    const completed = await store.list({ state: 'completed', limit: 2 * RACED_KEYS })
    expect(completed.map((view) => view.key).toSorted()).toEqual(keys)
    expect(completed.every((view) => view.attempt === 1)).toBe(true)
  },
  120_000,
)

// The process is killed at any point between claim, the two rows, settle and commit.
it(
  'commits both key and rows to PostgreSQL, or neither, when killed',
  { timeout: 60_000 },
  async () => {
    const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
    console.info(`kill rounds with ONCEKEY_TEST_SEED=${seed}`)
    const random = seededRandom(seed)
    const { url, app, open, paid } = await setup()
    const store = await open()
    const acknowledged: string[] = []
    for (let round = 0; round < KILL_ROUNDS; round++) {
      const worker = startWorker('postgres-worker.ts', ['loop', url, `${seed + round}`])
      await worker.written(2 + Math.floor(random() * 15))
      await new Promise((resolve) => setTimeout(resolve, random() * 5))
      await worker.kill()
      acknowledged.push(...worker.lines.slice(1))
    }
    // The database notices a killed process when it next writes to or reads from the connection.
    const others = `SELECT count(*)::int AS count FROM pg_stat_activity
    WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()`
    await expect.poll(async () => (await app.query(others)).rows[0].count).toBe(0)

    const rows = (await paid()) as string[]
    const completed = await store.list({ state: 'completed', limit: 100_000 })
    const expected = completed.flatMap((view) => [view.key, `${view.key} again`])
    expect(rows.toSorted()).toEqual(expected.toSorted())
    expect(rows).toEqual(expect.arrayContaining(acknowledged))
  },
)
