import fc from 'fast-check'
import { expect, it } from 'vitest'
import { sleep } from '../../src/core/clock.ts'
import { createEngine } from '../../src/core/engine.ts'
import type { RunOutcome, WorkEnd } from '../../src/core/execution.ts'
import type { RunContext } from '../../src/core/run-context.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { bytes, KEY, SCOPE, text } from './engine-fixture.ts'
import { FaultyStore, type Fate } from './faulty-store.ts'
import { JoinableStore, type JoinFate } from './joinable-store.ts'

/** One transaction of the work: what comes of its statement, how it ends, and how slowly. */
interface Try {
  readonly fate: JoinFate
  readonly end: 'commit' | 'rollback' | 'commit later' | 'rollback later' | 'lose the commit'
  readonly pausesMs: readonly number[]
}

interface Attempt {
  readonly startMs: number
  readonly tries: readonly Try[]
  readonly last: 'return' | 'throw' | 'return another'
}

interface History {
  readonly onLapse: 'unknown' | 'rerun'
  readonly attempts: readonly Attempt[]
  readonly settles: readonly Fate[]
  readonly reads: readonly Fate[]
}

const pauseMs = fc.constantFrom(0, 0, 0, 10, 3_000, 25_000, 70_000)
const fate = fc.constantFrom<Fate>('ok', 'ok', 'fail', 'lose', { lateMs: 2_000 })

const histories: fc.Arbitrary<History> = fc.record({
  onLapse: fc.constantFrom('unknown', 'rerun'),
  settles: fc.array(fate, { maxLength: 6 }),
  reads: fc.array(fate, { maxLength: 4 }),
  attempts: fc.array(
    fc.record({
      startMs: fc.constantFrom(0, 0, 1_000, 30_000, 90_000),
      last: fc.constantFrom('return', 'return', 'throw', 'return another'),
      tries: fc.array(
        fc.record({
          fate: fc.constantFrom<JoinFate>('ok', 'ok', 'ok', 'fail', 'lose', 'hang'),
          end: fc.constantFrom(
            'commit',
            'commit',
            'rollback',
            'commit later',
            'rollback later',
            'lose the commit',
          ),
          pausesMs: fc.array(pauseMs, { minLength: 3, maxLength: 3 }),
        }),
        { minLength: 1, maxLength: 3 },
      ),
    }),
    { minLength: 1, maxLength: 3 },
  ),
})

// Slow transactions, lost answers, lapsed leases, several nodes: whatever comes of it, the payment
// is made at most once, its receipt is on record, and nobody is told anything else.
it('pays once, and the receipt is on record, however it is interleaved', async () => {
  const seen = { ran: 0, paid: 0, unpaid: 0 }
  await fc.assert(
    fc.asyncProperty(histories, (history) => live(history, seen)),
    { numRuns: 400 },
  )
  // The histories reach both ends, or they prove nothing.
  expect(seen.paid).toBeGreaterThan(100)
  expect(seen.unpaid).toBeGreaterThan(20)
  expect(seen.ran).toBeGreaterThan(100)
})

async function live(
  history: History,
  seen: { ran: number; paid: number; unpaid: number },
): Promise<void> {
  const clock = new FakeClock()
  const database = new JoinableStore(clock)
  const settleIn = database.settleIn.bind(database)
  const store = Object.assign(new FaultyStore(database, clock), { settleIn })
  store.next('settle', ...history.settles)
  store.next('read', ...history.reads)
  const { onLapse } = history
  const lies: string[] = []

  const tell = async (outcome: RunOutcome) => {
    if (outcome.kind !== 'ran' && outcome.kind !== 'replayed') return
    seen.ran++
    const [record] = database.records.values()
    const told = text(outcome.result)
    const recorded = record?.result === undefined ? 'nothing' : text(record.result)
    if (told !== recorded) lies.push(`told ${told}, but ${recorded} is on record`)
  }
  const work = (name: string, attempt: Attempt) => async (context: RunContext) => {
    let end: WorkEnd = bytes(`nothing of ${name}`)
    for (const [n, one] of attempt.tries.entries()) {
      try {
        end = await payOnce({ clock, database, context }, `${name}/${n}`, one)
        break
      } catch {
        // As a loop around a transaction does it: once more.
      }
    }
    if (attempt.last === 'throw') throw new Error('broke')
    return attempt.last === 'return another' ? bytes(`something of ${name}`) : end
  }
  const nodes = history.attempts.map(async (attempt, n) => {
    const engine = createEngine({ store, clock, onLapse, sweepEveryMs: 30_000, reapEveryMs: 0 })
    await sleep(clock, attempt.startMs)
    const request = { scope: SCOPE, key: KEY, fingerprint: 'f' }
    await engine.run(request, work(`node ${n}`, attempt)).then(tell, () => undefined)
    await engine.close({ graceMs: 600_000 })
  })
  await clock.advanceAsync(4_000_000)
  await Promise.all(nodes)
  while (database.locks.size > 0) await clock.advanceAsync(1_000)

  const [record] = database.records.values()
  const receipt = record?.result === undefined ? undefined : text(record.result)
  expect(lies).toEqual([])
  expect(database.paid.length).toBeLessThanOrEqual(1)
  seen[database.paid.length === 1 ? 'paid' : 'unpaid']++
  for (const row of database.paid) {
    expect([record?.state, receipt]).toEqual(['completed', `receipt of ${row}`])
  }
  if (receipt?.startsWith('receipt of ') === true) expect(database.paid.length).toBe(1)
}

interface Scene {
  readonly clock: FakeClock
  readonly database: JoinableStore
  readonly context: RunContext
}

async function payOnce(scene: Scene, row: string, one: Try): Promise<Uint8Array> {
  const { clock, database, context } = scene
  const [beforeMs, betweenMs, laterMs] = one.pausesMs as [number, number, number]
  const tx = database.begin()
  tx.pay(row)
  await sleep(clock, beforeMs)
  database.fates = [one.fate]
  const receipt = bytes(`receipt of ${row}`)
  try {
    await context.completeIn(tx, receipt)
  } catch (error) {
    tx.rollback()
    throw error
  }
  await sleep(clock, betweenMs)
  switch (one.end) {
    case 'commit':
      tx.commit()
      return receipt
    case 'rollback':
      tx.rollback()
      throw new Error('rolled back')
    case 'lose the commit':
      tx.commit()
      throw new Error('connection lost')
    case 'commit later':
    case 'rollback later':
      // Nobody waits for it: the work may have ended long before.
      void sleep(clock, laterMs).then(() => {
        if (one.end === 'commit later') tx.commit()
        else tx.rollback()
      })
      return receipt
  }
}
