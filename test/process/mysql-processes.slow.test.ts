import { expect, it } from 'vitest'
import { untilGone, useMariadb } from '../stores/mysql/setup.ts'
import { seededRandom } from './random.ts'
import { startWorker } from './worker-process.ts'

const setup = useMariadb()

const RACERS = 20
const RACED_KEYS = 1000
const KILL_ROUNDS = 4

/**
 * The statements of a claim and of a transaction with two rows: read and insert;
 * isolation, begin, read, savepoint, two rows, savepoint, lock, update, commit.
 */
const STATEMENTS = 12

it(
  'gives each of 1,000 keys to one of 20 MariaDB processes that all migrate',
  { timeout: 120_000 },
  async () => {
    const { url, open, column } = await setup()
    const racers = Array.from({ length: RACERS }, () =>
      startWorker('mysql-worker.ts', ['race', url, `${RACED_KEYS}`]),
    )
    await Promise.all(racers.map((racer) => racer.written(1)))
    for (const racer of racers) racer.tell('go')
    const codes = await Promise.all(racers.map((racer) => racer.ended))
    expect(codes).toEqual(racers.map(() => 0))
    expect(await column('SELECT number FROM oncekey_record_migration ORDER BY 1')).toEqual([
      -4, -3, -2, 1,
    ])

    const keys = Array.from({ length: RACED_KEYS }, (_, n) => `key-${n}`).toSorted()
    expect(racers.flatMap((racer) => racer.lines.slice(1)).toSorted()).toEqual(keys)
    const completed = await (await open()).list({ state: 'completed', limit: 2 * RACED_KEYS })
    expect(completed.map((view) => view.key).toSorted()).toEqual(keys)
    expect(completed.every((view) => view.attempt === 1)).toBe(true)
  },
)

it('commits key and rows together when killed at any MariaDB statement', async () => {
  const { url, open, column, paid } = await setup()
  const store = await open()
  const steps = Array.from({ length: STATEMENTS - 1 }, (_, n) => n + 3)
  const workers = [
    ...steps.map((step) => startWorker('mysql-worker.ts', ['die', url, `${step}`, 'before'])),
    ...steps
      .slice(-3)
      .map((step) => startWorker('mysql-worker.ts', ['die', url, `${step}`, 'sent'])),
  ]
  const codes = await Promise.all(workers.map((worker) => worker.ended))
  // Killed at each of its statements. The last number has no statement, so the process survives.
  expect(codes.slice(0, steps.length)).toEqual([...steps.slice(1).map(() => null), 0])
  await untilGone(column)

  const rows = (await paid()) as string[]
  const completed = await store.list({ state: 'completed', limit: 100 })
  const expected = completed.flatMap((view) => [view.key, `${view.key} again`])
  expect(rows.toSorted()).toEqual(expected.toSorted())
  expect(rows).toEqual(expect.arrayContaining([`before ${STATEMENTS + 1}`]))
  expect(rows.filter((row) => /^before \d+$/.test(row))).toEqual([`before ${STATEMENTS + 1}`])
})

// The process is killed at any point between claim, the two rows, settle and commit.
it('commits both key and rows to MariaDB, or neither, when killed at a random time', async () => {
  const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
  console.info(`kill rounds with ONCEKEY_TEST_SEED=${seed}`)
  const random = seededRandom(seed)
  const { url, column, open, paid } = await setup()
  const store = await open()
  const killed = Array.from({ length: KILL_ROUNDS }, async (_, round) => {
    const worker = startWorker('mysql-worker.ts', ['loop', url, `${seed + round}`])
    await worker.written(2 + Math.floor(random() * 15))
    await new Promise((resolve) => setTimeout(resolve, random() * 5))
    await worker.kill()
    return worker.lines
  })
  const acknowledged = (await Promise.all(killed)).flat()
  await untilGone(column)

  const rows = (await paid()) as string[]
  const completed = await store.list({ state: 'completed', limit: 100_000 })
  const expected = completed.flatMap((view) => [view.key, `${view.key} again`])
  expect(rows.toSorted()).toEqual(expected.toSorted())
  expect(rows).toEqual(expect.arrayContaining(acknowledged))
})
