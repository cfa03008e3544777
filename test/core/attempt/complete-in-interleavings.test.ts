import fc from 'fast-check'
import { expect, it } from 'vitest'
import { sleep } from '../../../src/core/time/clock.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { RunOutcome } from '../../../src/core/attempt/run-outcome.ts'
import type { WorkResult, RunContext } from '../../../src/core/attempt/run-context.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, KEY, SCOPE, text } from '../engine/engine-fixture.ts'
import { FaultyStore, type Fate } from '../engine/faulty-store.ts'
import { JoinableStore, type JoinFate } from './joinable-store.ts'

/** One transaction of the work: the fate of its statement, how it ends, and its pauses. */
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

// Slow transactions, lost answers, lapsed leases and several nodes, in random order: the payment is
// made at most once, its receipt is on record, and no caller gets another result.
it('pays at most once and records the receipt in every interleaving of completeIn', async () => {
  const counts = { ran: 0, paid: 0, unpaid: 0 }
  await fc.assert(
    fc.asyncProperty(histories, (history) => live(history, counts)),
    { numRuns: 400 },
  )
  // The test proves nothing unless the histories reach all these ends.
  expect(counts.paid).toBeGreaterThan(100)
  expect(counts.unpaid).toBeGreaterThan(20)
  expect(counts.ran).toBeGreaterThan(100)
})

async function live(
  history: History,
  counts: { ran: number; paid: number; unpaid: number },
): Promise<void> {
  const clock = new FakeClock()
  const database = new JoinableStore(clock)
  const settleIn = database.settleIn.bind(database)
  const store = Object.assign(new FaultyStore(database, clock), { settleIn })
  store.next('settle', ...history.settles)
  store.next('read', ...history.reads)
  const { onLapse } = history
  const wrongAnswers: string[] = []

  const check = async (outcome: RunOutcome) => {
    if (outcome.kind !== 'ran' && outcome.kind !== 'replayed') return
    counts.ran++
    const [record] = database.records.values()
    const answer = text(outcome.result)
    const recorded = record?.result === undefined ? 'nothing' : text(record.result)
    if (answer !== recorded) wrongAnswers.push(`got ${answer}, but ${recorded} is on record`)
  }
  const work = (name: string, attempt: Attempt) => async (context: RunContext) => {
    let end: WorkResult = bytes(`nothing of ${name}`)
    for (const [n, one] of attempt.tries.entries()) {
      try {
        end = await payOnce({ clock, database, context }, `${name}/${n}`, one)
        break
      } catch {
        // Tries again, like a loop around a transaction.
      }
    }
    if (attempt.last === 'throw') throw new Error('broke')
    return attempt.last === 'return another' ? bytes(`something of ${name}`) : end
  }
  const nodes = history.attempts.map(async (attempt, n) => {
    const engine = createEngine({ store, clock, onLapse, sweepEveryMs: 30_000, reapEveryMs: 0 })
    await sleep(clock, attempt.startMs)
    const request = { scope: SCOPE, key: KEY, fingerprint: 'f' }
    await engine.run(request, work(`node ${n}`, attempt)).then(check, () => undefined)
    await engine.close({ graceMs: 600_000 })
  })
  await clock.advanceAsync(4_000_000)
  await Promise.all(nodes)
  while (database.locks.size > 0) await clock.advanceAsync(1_000)

  const [record] = database.records.values()
  const receipt = record?.result === undefined ? undefined : text(record.result)
  expect(wrongAnswers).toEqual([])
  expect(database.paid.length).toBeLessThanOrEqual(1)
  counts[database.paid.length === 1 ? 'paid' : 'unpaid']++
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
      // The transaction is not awaited: the work may have ended long before.
      void sleep(clock, laterMs).then(() => {
        if (one.end === 'commit later') tx.commit()
        else tx.rollback()
      })
      return receipt
  }
}
