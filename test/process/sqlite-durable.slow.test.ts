import { DatabaseSync } from 'node:sqlite'
import { expect, it, onTestFinished } from 'vitest'
import { newToken } from '../../src/core/record/identity.ts'
import { sqliteStore, type SqliteStore } from '../../src/stores/sqlite/index.ts'
import { OPERATION, resultOf } from '../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { bytes, claimRequest, ofKind, only } from '../../src/testing/store-cases/store-case.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { seededRandom } from './random.ts'
import { startWorker } from './worker-process.ts'

const KILL_ROUNDS = 8
const LEASE_MS = 60_000

function setup() {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const path = folder.file('records.db')
  const app = new DatabaseSync(path)
  app.exec('CREATE TABLE payment (record_id TEXT)')
  onTestFinished(() => app.close())
  const column = (sql: string) =>
    app
      .prepare(sql)
      .all()
      .map((row) => Object.values(row)[0])
  return { path, app, column }
}

type Column = ReturnType<typeof setup>['column']

/** Invariants of the file at any moment, after any kill. */
function expectWhole(column: Column, where: string): void {
  expect({ where, check: column('PRAGMA integrity_check') }).toEqual({ where, check: ['ok'] })
  expect({ where, check: column('PRAGMA foreign_key_check') }).toEqual({ where, check: [] })
  const booked = column(
    `SELECT record_id FROM oncekey_record_phase WHERE name = 'book' ORDER BY record_id`,
  )
  const paid = column('SELECT record_id FROM payment ORDER BY record_id')
  const told = column('SELECT key FROM oncekey_record_message ORDER BY key')
  const begun = column('SELECT record_id FROM oncekey_record_operation ORDER BY record_id')
  expect({ where, paid, told, begun }).toEqual({ where, paid: booked, told: booked, begun: booked })
  // A recovery point is the last completed phase; a completed record has them all.
  const astray = column(
    `SELECT r.record_id FROM oncekey_record r WHERE r.recovery_point IS NOT (
       SELECT name FROM oncekey_record_phase p
       WHERE p.record_id = r.record_id AND state = 'done' ORDER BY number DESC LIMIT 1)
     OR (r.state = 'completed' AND r.recovery_point <> 'charge')`,
  )
  expect({ where, astray }).toEqual({ where, astray: [] })
  const headless = column(
    `SELECT lane FROM oncekey_record_message WHERE lane IS NOT NULL
     GROUP BY topic, lane HAVING sum(is_head) <> 1`,
  )
  expect({ where, headless }).toEqual({ where, headless: [] })
}

async function expectRecorded(store: SqliteStore, lines: readonly string[], where: string) {
  const { phases, outbox } = store.durable
  const done = await outbox.list({ state: 'done', limit: 1_000_000 })
  const relayed = new Set(done.map(({ key }) => key))
  for (const line of lines) {
    const { recordId, reached } = JSON.parse(line) as { recordId: string; reached: string }
    const names = (await phases.load(recordId))?.phases.map(({ name, state }) => `${name} ${state}`)
    const record = await store.read({ recordId })
    const isSo = {
      book: names?.includes('book done'),
      intended: names?.some((name) => name.startsWith('charge')),
      done: record?.state === 'completed',
      relayed: relayed.has(recordId),
    }[reached]
    expect({ where, line, isSo }).toEqual({ where, line, isSo: true })
  }
}

/** Finishes all remaining work, like a worker. */
async function finishAll(store: SqliteStore): Promise<void> {
  await store.sweep({ limit: 1000 })
  const due = await store.durable.phases.due({ operations: [OPERATION], limit: 1000 })
  for (const { record } of due) {
    const { tenant, operation, key, fingerprint } = record
    const request = claimRequest({ mode: 'take', tenant, operation, key, fingerprint })
    const { lease } = ofKind(only(await store.claim([request])), 'claimed')
    const phase = resultOf({ name: 'charge', number: 2 })
    const end = { kind: 'complete', result: bytes('late'), retentionMs: LEASE_MS } as const
    ofKind(await store.durable.phases.record(lease, { phase, end }), 'advanced')
  }
}

/** The keys of all messages, in the order in which they are relayed. */
async function relayAll(store: SqliteStore): Promise<string[]> {
  const keys: string[] = []
  for (;;) {
    const request = { topics: ['receipts'], limit: 100, leaseMs: LEASE_MS, token: newToken() }
    const held = await store.durable.outbox.claim(request)
    if (held.length === 0) return keys
    keys.push(...held.map(({ key }) => String(key)))
    const done = held.map(({ id, token }) => {
      return { id, token, kind: 'done', providerId: undefined } as const
    })
    await store.durable.outbox.settle(done)
  }
}

// The process is killed at any point between the steps of operations and the relay of messages.
it(
  'leaves no partial step in SQLite after a kill, and all work can be finished',
  { timeout: 120_000 },
  async () => {
    const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
    console.info(`kill rounds with ONCEKEY_TEST_SEED=${seed}`)
    const random = seededRandom(seed)
    const { path, column } = setup()

    for (let round = 0; round < KILL_ROUNDS; round++) {
      const worker = startWorker('sqlite-durable-worker.ts', [path, `${seed + round}`])
      await worker.written(2 + Math.floor(random() * 40))
      // A random delay: all lines are written just after a commit.
      await new Promise((resolve) => setTimeout(resolve, random() * 5))
      await worker.kill()

      const where = `seed ${seed}, round ${round}`
      expectWhole(column, where)
      const store = sqliteStore({ path })
      onTestFinished(() => store.close())
      await expectRecorded(store, worker.lines.slice(1), where)
      await store.close()
    }

    const clock = new FakeClock(Date.now() + 2 * LEASE_MS)
    const store = sqliteStore({ path, clock })
    onTestFinished(() => store.close())
    await finishAll(store)
    const open = [
      ...(await store.list({ state: 'in_progress', limit: 10 })),
      ...(await store.list({ state: 'failed_retryable', limit: 10 })),
    ]
    // A record whose process was killed before its first step has no operation; its client retries.
    expect(open.filter(({ recoveryPoint }) => recoveryPoint !== undefined)).toEqual([])

    const left = (lane: string) =>
      column(`SELECT key FROM oncekey_record_message WHERE lane = '${lane}' ORDER BY number`)
    const lanes = ['p0', 'p1', 'p2'].map(left)
    const keys = await relayAll(store)
    const inOrder = lanes.map((lane) => keys.filter((key) => lane.includes(key)))
    expect(inOrder).toEqual(lanes)
    expectWhole(column, `seed ${seed}, at the end`)
  },
)
