import { DatabaseSync } from 'node:sqlite'
import { expect, it, onTestFinished } from 'vitest'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { sqliteStore, type SqliteStore } from '../../src/stores/sqlite/index.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  ofKind,
} from '../../src/testing/store-cases/store-case.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { seededRandom } from './random.ts'
import { startWorker } from './worker-process.ts'

const RACERS = 4
const RACED_KEYS = 60
const KILL_ROUNDS = 15

function setup() {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const path = folder.file('records.db')
  const app = new DatabaseSync(path)
  app.exec('CREATE TABLE payment (key TEXT)')
  onTestFinished(() => app.close())
  const start = (mode: string, number = 0) =>
    startWorker('sqlite-worker.ts', [mode, path, `${number}`])
  const paid = () =>
    app
      .prepare('SELECT key FROM payment ORDER BY key')
      .all()
      .map((row) => row['key'])
  return { path, app, start, paid }
}

/** Uses a fake clock, so that the test does not wait for leases to lapse. */
function inspect(path: string): { store: SqliteStore; clock: FakeClock } {
  const clock = new FakeClock(Date.now())
  const store = sqliteStore({ path, clock })
  onTestFinished(() => store.close())
  return { store, clock }
}

it('gives each key to one of several processes that create the same SQLite file', async () => {
  const { path, start, paid } = setup()
  const racers = Array.from({ length: RACERS }, () => start('race', RACED_KEYS))
  await Promise.all(racers.map((racer) => racer.written(1)))
  for (const racer of racers) racer.tell('go')
  const codes = await Promise.all(racers.map((racer) => racer.ended))

  const keys = Array.from({ length: RACED_KEYS }, (_, n) => `key-${n}`).toSorted()
  const won = racers.flatMap((racer) => racer.lines.slice(1))
  expect(codes).toEqual(racers.map(() => 0))
  expect(won.toSorted()).toEqual(keys)
  expect(paid()).toEqual(keys)
  const completed = await inspect(path).store.list({ state: 'completed', limit: 1000 })
  expect(completed.map((view) => view.key).toSorted()).toEqual(keys)
})

it('frees the keys of a killed process by lapse policy, and leaves none stuck', async () => {
  const { path, start, paid } = setup()
  const holder = start('hold')
  await holder.written(1)
  const { store, clock } = inspect(path)
  ofKind(await claim(store, { key: 'repeatable' }), 'in_progress')
  await holder.kill()
  ofKind(await claim(store, { key: 'repeatable' }), 'in_progress')

  const { identity } = claimRequest({ key: 'repeatable' })
  const { leaseUntil } = (await store.read({ identity }))!
  clock.advance(leaseUntil.getTime() - clock.nowMs())
  expect(ofKind(await claim(store, { key: 'cautious' }), 'unknown').lapsed).toBe(true)
  const { lease, from } = ofKind(await claim(store, { key: 'repeatable' }), 'claimed')
  expect([lease.attempt, from]).toEqual([2, 'lapsed'])
  expect(paid()).toEqual([])

  const swept = await store.sweep({ limit: 10 })
  expect(swept.map((record) => record.to)).toEqual(['unknown'])
  const held = await store.list({ state: 'in_progress', limit: 10 })
  expect(held.map((view) => view.key)).toEqual(['repeatable'])
})

// The process is killed at any point between claim, transaction, commit and settle.
it('keeps acknowledged results, and key and rows together, when killed', async () => {
  const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
  console.info(`kill rounds with ONCEKEY_TEST_SEED=${seed}`)
  const random = seededRandom(seed)
  const { path, app, start, paid } = setup()

  for (let round = 0; round < KILL_ROUNDS; round++) {
    const worker = start('loop', seed + round)
    await worker.written(2 + Math.floor(random() * 40))
    // A random delay: all lines are written just after a commit.
    await new Promise((resolve) => setTimeout(resolve, random() * 5))
    await worker.kill()

    const where = `seed ${seed}, round ${round}`
    const check = app.prepare('PRAGMA integrity_check').get()
    expect({ where, ...check }).toEqual({ where, integrity_check: 'ok' })
    const { store } = inspect(path)
    await expectRecorded(store, worker.lines.slice(1), where)
    const completed = await store.list({ state: 'completed', limit: 100_000 })
    const payments = completed.filter((view) => view.operation === 'pay').map((view) => view.key)
    expect({ where, paid: paid() }).toEqual({ where, paid: payments.toSorted() })
    await store.close()
  }

  const { store, clock } = inspect(path)
  clock.advance(120_000)
  await store.sweep({ limit: 1000 })
  expect(await store.list({ state: 'in_progress', limit: 10 })).toEqual([])
})

async function expectRecorded(
  store: SqliteStore,
  lines: readonly string[],
  where: string,
): Promise<void> {
  expect(lines.length).toBeGreaterThan(0)
  for (const line of lines) {
    const { identity, operation, key } = JSON.parse(line) as Record<string, string>
    const view = await store.read({ identity: identity! })
    expect({ where, key, state: view?.state }).toEqual({ where, key, state: 'completed' })
    assertBytes(view?.result, bytes(`${operation === 'pay' ? 'paid' : 'noted'} ${key}`))
  }
}
