import { describe, expect, it } from 'vitest'
import { LeaseLostError, OutcomeUnknownError } from '../../../src/core/errors.ts'
import type { WorkResult, RunContext } from '../../../src/core/attempt/run-context.ts'
import { payIn, setup, type Setup } from './complete-in-fixture.ts'
import { bytes, gate, standing } from '../engine/engine-fixture.ts'
import { LOCK_MS, type Transaction } from './joinable-store.ts'

const DAY_MS = 86_400_000

/** Like `payIn`, but the transaction stays open when the work ends. */
const payLater =
  (of: Pick<Setup, 'database'>, opened: (tx: Transaction) => void, end: () => WorkResult) =>
  async (context: RunContext): Promise<WorkResult> => {
    const tx = of.database.begin()
    tx.pay('later')
    await context.completeIn(tx, bytes('receipt of later'))
    opened(tx)
    return end()
  }

describe('a key completed with completeIn', () => {
  it('replays the committed result, even if the work returns other bytes', async () => {
    const { run, database, store, clock, kinds, record } = setup()
    const outcome = await run(async (context) => {
      await payIn({ database }, 'a')(context)
      return bytes('something else')
    })
    const expiresAt = new Date(clock.nowMs() + DAY_MS)
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('receipt of a'), expiresAt })
    expect(await record()).toMatchObject({ state: 'completed', attempt: 1 })
    expect(store.asked('settle')).toEqual([])
    const again = await run(payIn({ database }, 'b'))
    expect(again).toMatchObject({ kind: 'replayed', result: bytes('receipt of a') })
    expect(database.paid).toEqual(['a'])
    expect(kinds()).toEqual(['reserve_created', 'reserve_replay'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('keeps the committed result as long as extendRetention says', async () => {
    const { run, database, clock } = setup()
    const outcome = await run((context) => {
      context.extendRetention(3 * DAY_MS)
      return payIn({ database }, 'a')(context)
    })
    expect(outcome).toMatchObject({ expiresAt: new Date(clock.nowMs() + 3 * DAY_MS) })
  })

  it('keeps the committed result if the work throws after the commit', async () => {
    const { run, database, clock, kinds } = setup()
    const running = run(async (context) => {
      await payIn({ database }, 'a')(context)
      throw new Error('the mail server is down')
    })
    await expect(running).rejects.toThrow('the mail server is down')
    expect(await run(payIn({ database }, 'b'))).toMatchObject({ kind: 'replayed' })
    expect(kinds()).toEqual(['reserve_created', 'reserve_replay'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('answers with the committed result if the work hangs after the commit', async () => {
    const { run, database, clock, kinds } = setup({ runTimeoutMs: 10_000 })
    const running = run(async (context) => {
      await payIn({ database }, 'a')(context)
      return new Promise<WorkResult>(() => undefined)
    })
    await clock.advanceAsync(10_000)
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('receipt of a') })
    expect(kinds()).toEqual(['reserve_created'])
  })

  it('finds the committed result by the settlement if the record cannot be read', async () => {
    const { run, database, store } = setup()
    store.next('read', 'fail')
    const outcome = await run(async (context) => {
      await payIn({ database }, 'a')(context)
      return bytes('something else')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('receipt of a') })
  })

  it('rejects with OUTCOME_NOT_RECORDED while the recorded result cannot be read', async () => {
    const { run, database, store } = setup()
    store.always('read', 'fail')
    const running = run(payIn({ database }, 'a'))
    await expect(running).rejects.toMatchObject({ code: 'OUTCOME_NOT_RECORDED' })
    expect(database.paid).toEqual(['a'])
    store.always('read', 'ok')
    expect(await run(payIn({ database }, 'b'))).toMatchObject({ kind: 'replayed' })
  })
})

describe('a transaction with completeIn that was rolled back', () => {
  it('lets the error of the work decide whether the key may run again', async () => {
    const { run, database, record, clock } = setup()
    const declined = new Error('card declined')
    const running = run(async (context) => {
      const tx = database.begin()
      tx.pay('a')
      await context.completeIn(tx, bytes('receipt'))
      tx.rollback()
      throw declined
    })
    await expect(running).rejects.toBe(declined)
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
    expect(await run(payIn({ database }, 'b'))).toMatchObject({ kind: 'ran' })
    expect(database.paid).toEqual(['b'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('lets the work complete the key with other bytes after a rollback', async () => {
    const { run, database } = setup()
    const outcome = await run(async (context) => {
      const tx = database.begin()
      await context.completeIn(tx, bytes('receipt'))
      tx.rollback()
      return bytes('declined')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('declined') })
  })

  // Some databases answer the COMMIT of a failed transaction without an error.
  it('leaves the outcome unknown if the work takes the rollback for a commit', async () => {
    const { run, database, record } = setup()
    database.fates = ['fail']
    const running = run(async (context) => {
      const tx = database.begin()
      tx.pay('a')
      await context.completeIn(tx, bytes('receipt')).catch(() => undefined)
      tx.rollback()
      return bytes('receipt')
    })
    await expect(running).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('does not run the work again after a rollback to a savepoint before completeIn', async () => {
    const { run, database, record } = setup()
    const running = run(async (context) => {
      const tx = database.begin()
      tx.pay('a')
      await context.completeIn(tx, bytes('receipt'))
      tx.rollbackToSavepoint()
      tx.commit()
      return bytes('receipt')
    })
    await expect(running).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await record()).toMatchObject({ state: 'unknown' })
    expect(await run(payIn({ database }, 'b'))).toMatchObject({ kind: 'unknown' })
    expect(database.paid).toEqual(['a'])
  })

  it('leaves the outcome unknown if the work returns a result that was rolled back', async () => {
    const { run, database, record } = setup()
    const running = run(async (context) => {
      for (const receipt of ['first', 'second']) {
        const tx = database.begin()
        await context.completeIn(tx, bytes(receipt))
        tx.rollback()
      }
      return bytes('first')
    })
    await expect(running).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('lets the same attempt try completeIn again after a rollback', async () => {
    const { run, database } = setup()
    database.fates = ['fail']
    const outcome = await run(async (context) => {
      const pay = payIn({ database }, 'a')
      await expect(pay(context)).rejects.toThrow('could not serialize access')
      const tx = database.begin()
      await context.completeIn(tx, bytes('refused at the commit'))
      tx.rollback()
      return pay(context)
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('receipt of a') })
    expect(database.paid).toEqual(['a'])
  })

  it('leaves the outcome unknown after a rollback if an outside effect had begun', async () => {
    const { run, database, record } = setup()
    const running = run(async (context) => {
      context.downstreamKey()
      const tx = database.begin()
      await context.completeIn(tx, bytes('receipt'))
      tx.rollback()
      throw new Error('broke')
    })
    await expect(running).rejects.toThrow('broke')
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  // The caller is answered after runTimeoutMs, and the work may have acted by other means since.
  it('leaves the outcome unknown if the work fails long after a rollback', async () => {
    const { run, database, clock, record } = setup({ runTimeoutMs: 1_000 })
    const overrun = gate()
    const running = run(async (context) => {
      const tx = database.begin()
      await context.completeIn(tx, bytes('receipt'))
      tx.rollback()
      await overrun.opened
      throw new Error('broke after acting outside')
    })
    await clock.advanceAsync(1_000)
    expect(await running).toMatchObject({ kind: 'unknown' })
    overrun.open()
    await clock.advanceAsync(0)
    expect(await record()).toMatchObject({ state: 'unknown' })
  })
})

describe('a commit with completeIn whose answer was lost', () => {
  it('answers with the committed result if the work reports a failure', async () => {
    const { run, database, kinds } = setup()
    const outcome = await run(async (context) => {
      await payIn({ database }, 'a')(context)
      return { kind: 'fail', result: bytes('sorry'), error: new Error('connection lost') }
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('receipt of a') })
    expect(kinds()).toEqual(['reserve_created'])
  })

  it('refuses a second completeIn and answers with the committed result', async () => {
    const { run, database, kinds } = setup()
    let refusal: unknown
    const outcome = await run(async (context) => {
      await payIn({ database }, 'a')(context)
      return payIn(
        { database },
        'b',
      )(context).catch((error: unknown) => {
        refusal = error
        throw error
      })
    })
    expect(refusal).toBeInstanceOf(LeaseLostError)
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('receipt of a') })
    expect(database.paid).toEqual(['a'])
    expect(kinds()).toEqual(['reserve_created'])
  })

  it('rejects with OutcomeUnknownError while the store fails after a commit', async () => {
    const { run, database, store, clock, record } = setup()
    store.always('settle', 'fail')
    const lost = new Error('connection lost')
    const running = run(async (context) => {
      await payIn({ database }, 'a')(context)
      throw lost
    }).catch((error: unknown) => error)
    await clock.advanceAsync(10_000)
    const error = await running
    expect(error).toBeInstanceOf(OutcomeUnknownError)
    expect((error as Error).cause).toBe(lost)
    store.always('settle', 'ok')
    await clock.advanceAsync(10_000)
    expect(await record()).toMatchObject({ state: 'completed', result: bytes('receipt of a') })
    expect(clock.pendingTimers).toBe(0)
  })

  it('finds the committed result if the answer to completeIn itself was lost', async () => {
    const { run, database } = setup()
    database.fates = ['lose']
    const outcome = await run(async (context) => {
      const tx = database.begin()
      tx.pay('a')
      await context.completeIn(tx, bytes('receipt')).catch(() => undefined)
      tx.commit()
      return bytes('it seems to have failed')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('receipt') })
    expect(database.paid).toEqual(['a'])
  })
})

describe('a transaction with completeIn that is open when the work has ended', () => {
  it('answers with the result that the transaction commits after the work has ended', async () => {
    const of = setup()
    const opened = gate<Transaction>()
    const running = of.run(payLater(of, opened.open, () => bytes('something else')))
    const tx = await opened.opened
    await of.clock.advanceAsync(1_000)
    expect(await standing(running)).toBe('pending')
    tx.commit()
    await of.clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('receipt of later') })
    expect(of.clock.pendingTimers).toBe(0)
  })

  it.each(['commit', 'rollback'] as const)(
    'waits for the open transaction only until settleTimeoutMs, and records its %s later',
    async (how) => {
      const of = setup()
      const opened = gate<Transaction>()
      const running = of
        .run(payLater(of, opened.open, () => bytes('something else')))
        .catch((error: unknown) => error)
      const tx = await opened.opened
      await of.clock.advanceAsync(10_000)
      expect(await running).toMatchObject({ code: 'OUTCOME_NOT_RECORDED' })
      expect(await of.run(() => bytes('a duplicate'))).toMatchObject({ kind: 'in_progress' })
      tx[how]()
      await of.clock.advanceAsync(20_000)
      const result = how === 'commit' ? bytes('receipt of later') : bytes('something else')
      expect(await of.record()).toMatchObject({ state: 'completed', result })
      expect(of.database.paid).toEqual(how === 'commit' ? ['later'] : [])
      expect(of.clock.pendingTimers).toBe(0)
    },
  )

  it('leaves the outcome unknown if the work threw, until the open transaction ends', async () => {
    const of = setup()
    const opened = gate<Transaction>()
    const thrown = () => {
      throw new Error('broke')
    }
    const running = of.run(payLater(of, opened.open, thrown)).catch((error: unknown) => error)
    const tx = await opened.opened
    await of.clock.advanceAsync(10_000)
    expect(await running).toBeInstanceOf(OutcomeUnknownError)
    tx.rollback()
    await of.clock.advanceAsync(20_000)
    expect(await of.record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
    expect(of.clock.pendingTimers).toBe(0)
  })

  // All flushes are busy, so the settlements that follow gather in one batch.
  it('does not delay the settlements of other keys while a row is locked', async () => {
    const of = setup()
    of.store.next('settle', ...Array.from({ length: 4 }, () => ({ lateMs: 1_000 })))
    for (let n = 0; n < 4; n++) {
      void of.run(() => bytes('slow'), `slow-${n}`)
      await of.clock.advanceAsync(0)
    }
    const opened = gate<Transaction>()
    const running = of.run(payLater(of, opened.open, () => bytes('x'))).catch(() => undefined)
    const others = Array.from({ length: 10 }, (_, n) => of.run(() => bytes('ok'), `other-${n}`))
    const tx = await opened.opened
    await of.clock.advanceAsync(1_000)
    // The clock does not advance any more: none of these keys waits for the lock.
    for (const outcome of await Promise.all(others)) expect(outcome).toMatchObject({ kind: 'ran' })
    tx.rollback()
    await of.clock.advanceAsync(LOCK_MS)
    await running
  })
})

describe('other requests while a transaction with completeIn is open', () => {
  it('renews the leases of other keys while a row is locked', async () => {
    const of = setup()
    const done = gate<Uint8Array>()
    const held = gate()
    const joined = of.run(async (context) => {
      const tx = of.database.begin()
      await context.completeIn(tx, bytes('receipt'))
      await held.opened
      tx.commit()
      return bytes('receipt')
    })
    const other = of.run(async (context) => {
      const result = await done.opened
      context.assertHeld()
      return result
    }, 'other')
    await of.clock.advanceAsync(0)
    for (let passedMs = 0; passedMs < 300_000; passedMs += 1_000) {
      // Renewals that are due at the same time are sent in one batch.
      of.clock.advance(1_000)
      await of.clock.advanceAsync(0)
    }
    done.open(bytes('still held'))
    expect(await other).toMatchObject({ kind: 'ran' })
    held.open()
    expect(await joined).toMatchObject({ kind: 'ran', result: bytes('receipt') })
  })

  // The lease ends while the transaction is open, but no claim can take a locked row.
  it('refuses claims on a locked key whose lease has ended, and keeps its commit', async () => {
    const of = setup({ onLapse: 'rerun' })
    const held = gate()
    const joined = of.run(async (context) => {
      const tx = of.database.begin()
      tx.pay('a')
      await context.completeIn(tx, bytes('receipt'))
      await held.opened
      tx.commit()
      return bytes('receipt')
    })
    await of.clock.advanceAsync(120_000)
    expect(await of.engine.sweep()).toBe(0)
    expect(await of.run(() => bytes('a duplicate'))).toMatchObject({ kind: 'in_progress' })
    expect(of.kinds()).toContain('lease_lost')
    held.open()
    expect(await joined).toMatchObject({ kind: 'ran', result: bytes('receipt') })
    expect(of.database.paid).toEqual(['a'])
  })

  it('answers for work that hangs in a transaction, and keeps its later commit', async () => {
    const of = setup({ runTimeoutMs: 10_000 })
    const opened = gate<Transaction>()
    const end = () => new Promise<never>(() => undefined)
    const running = of.run(payLater(of, opened.open, end as never))
    const tx = await opened.opened
    await of.clock.advanceAsync(20_000)
    expect(await running).toMatchObject({ kind: 'unknown' })
    tx.commit()
    await of.clock.advanceAsync(20_000)
    expect(await of.record()).toMatchObject({ state: 'completed' })
    expect(of.clock.pendingTimers).toBe(0)
  })
})
