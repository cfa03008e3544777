import { describe, expect, it } from 'vitest'
import { InvalidOptionsError, LeaseLostError } from '../../src/core/errors.ts'
import type { RunContext } from '../../src/core/run-context.ts'
import { payIn, setup } from './complete-in-fixture.ts'
import { bytes, engineFixture, gate, KEY, SCOPE } from './engine-fixture.ts'

describe('completeIn', () => {
  it('throws where the lease was lost, and the transaction can be rolled back', async () => {
    const { run, start, database, clock, kinds } = setup({ onLapse: 'rerun' })
    const held = gate()
    const running = run(async (context) => {
      await held.opened
      return payIn({ database }, 'a')(context)
    }).catch((error: unknown) => error)
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_000)
    const other = start()
    const request = { scope: SCOPE, key: KEY, fingerprint: 'f' }
    expect(await other.run(request, () => bytes('from B'))).toMatchObject({ kind: 'ran' })
    held.open()
    expect(await running).toBeInstanceOf(LeaseLostError)
    expect(database.paid).toEqual([])
    expect(kinds()).toContain('settle_fenced')
    expect(await run(() => bytes('c'))).toMatchObject({ kind: 'replayed', result: bytes('from B') })
  })

  it('sends nothing where this attempt has lost its lease by its own clock', async () => {
    const { run, store, database, clock } = setup()
    store.always('renew', 'hang')
    const held = gate()
    const running = run(async (context) => {
      await held.opened
      return payIn({ database }, 'a')(context)
    }).catch((error: unknown) => error)
    await clock.advanceAsync(60_000)
    held.open()
    expect(await running).toBeInstanceOf(LeaseLostError)
    expect(database.paid).toEqual([])
  })

  // By its own clock only: the record would still take the result, of rows that were rolled back.
  it('that was refused is not acknowledged by work that goes on regardless', async () => {
    const { run, store, database, clock, record } = setup()
    store.always('renew', 'hang')
    const held = gate()
    const running = run(async (context) => {
      await held.opened
      const tx = database.begin()
      tx.pay('a')
      await context.completeIn(tx, bytes('receipt')).catch(() => tx.rollback())
      return bytes('receipt')
    }).catch((error: unknown) => error)
    await clock.advanceAsync(60_000)
    held.open()
    expect(await running).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('leaves the outcome unknown where it is given something else than a transaction', async () => {
    const { run, record } = setup()
    const running = run(async (context) => {
      await context.completeIn({ pool: true }, bytes('receipt'))
      return bytes('receipt')
    })
    await expect(running).rejects.toBeInstanceOf(InvalidOptionsError)
    // What was written through a pool is committed already, and must not be written twice.
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('is given up when it is not answered', async () => {
    const { run, database, clock } = setup()
    database.fates = ['hang']
    const running = run(payIn({ database }, 'a')).catch((error: unknown) => error)
    await clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    expect(clock.pendingTimers).toBe(0)
  })

  it('is waited for where the work does not wait for it', async () => {
    const { run, database, clock } = setup()
    const running = run((context) => {
      const tx = database.begin()
      void context.completeIn(tx, bytes('receipt')).then(() => tx.commit())
      return bytes('not waited for')
    })
    await clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('receipt') })
  })

  it('refuses what is not bytes, before anything is sent', async () => {
    const { run, database, record } = setup()
    const running = run(async (context) => {
      await context.completeIn(database.begin(), 'text' as never)
      return bytes('x')
    })
    await expect(running).rejects.toThrow('must be given bytes to record')
    expect(await record()).toMatchObject({ state: 'failed_retryable' })
  })

  it('is refused beside another, and twice in one transaction', async () => {
    const { run, database } = setup()
    const outcome = await run(async (context) => {
      const tx = database.begin()
      tx.pay('a')
      const first = context.completeIn(tx, bytes('receipt'))
      await expect(context.completeIn(tx, bytes('beside'))).rejects.toThrow('is still open')
      await first
      await expect(context.completeIn(tx, bytes('again'))).rejects.toBeInstanceOf(LeaseLostError)
      tx.rollback()
      return bytes('neither')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('neither') })
    expect(database.paid).toEqual([])
  })

  it('is refused once the work has ended', async () => {
    const { run, database } = setup()
    let kept: RunContext | undefined
    await run((context) => {
      kept = context
      return bytes('done')
    })
    await expect(payIn({ database }, 'late')(kept!)).rejects.toThrow('has ended already')
    expect(database.paid).toEqual([])
  })

  it("does not mix with the store's own transaction", async () => {
    const { run, store, database } = setup()
    const own = store.transaction.bind(store)
    const outcome = await run(async (context) => {
      const tx = database.begin()
      const inside = context.transaction(async () => {
        await expect(context.completeIn(tx, bytes('inside'))).rejects.toThrow('is still open')
        throw new Error('no')
      })
      await expect(inside).rejects.toThrow('no')
      store.transaction = own
      await context.completeIn(tx, bytes('receipt'))
      const after = context.transaction(() => bytes('after'))
      await expect(after).rejects.toThrow('in a transaction of its own')
      tx.commit()
      return bytes('x')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('receipt') })
    const late = run(async (context) => {
      await context.transaction(() => bytes('committed'))
      await payIn({ database }, 'b')(context)
      return bytes('x')
    }, 'another')
    await expect(late).rejects.toThrow('has committed its result already')
    expect(database.paid).toEqual([])
  })

  it('is refused where the store has none', async () => {
    const { run } = engineFixture()
    const running = run(async (context) => {
      await context.completeIn({}, bytes('x'))
      return bytes('x')
    })
    await expect(running).rejects.toThrow('cannot complete a key in a transaction of yours')
  })

  it('leaves the result to work that does without it where the store has none', async () => {
    const { run } = engineFixture()
    const outcome = await run(async (context) => {
      await context.completeIn({}, bytes('x')).catch(() => undefined)
      return bytes('x')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('x') })
  })
})
