import { describe, expect, it } from 'vitest'
import { InvalidOptionsError, LeaseLostError } from '../../../src/core/errors.ts'
import type { RunContext } from '../../../src/core/attempt/run-context.ts'
import { payIn, setup } from './complete-in-fixture.ts'
import { bytes, engineFixture, gate, KEY, SCOPE } from '../engine/engine-fixture.ts'

describe('completeIn', () => {
  it('throws LeaseLostError from completeIn if the lease was lost', async () => {
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

  it('does not send completeIn if the lease has ended by the clock of the holder', async () => {
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

  // The lease is lost only by the clock of the holder: the record would accept the result, although
  // its rows were rolled back.
  it('leaves the outcome unknown if the work returns a result that was refused', async () => {
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

  it('leaves the outcome unknown if completeIn gets no transaction', async () => {
    const { run, record } = setup()
    const running = run(async (context) => {
      await context.completeIn({ pool: true }, bytes('receipt'))
      return bytes('receipt')
    })
    await expect(running).rejects.toBeInstanceOf(InvalidOptionsError)
    // Rows that were written through a pool are committed already, and must not be written twice.
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('rejects with STORE_FAILED if the store does not answer completeIn', async () => {
    const { run, database, clock } = setup()
    database.fates = ['hang']
    const running = run(payIn({ database }, 'a')).catch((error: unknown) => error)
    await clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    expect(clock.pendingTimers).toBe(0)
  })

  it('waits for a completeIn that the work does not await', async () => {
    const { run, database, clock } = setup()
    const running = run((context) => {
      const tx = database.begin()
      void context.completeIn(tx, bytes('receipt')).then(() => tx.commit())
      return bytes('not awaited')
    })
    await clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('receipt') })
  })

  it('refuses to complete a key with a result that is not bytes', async () => {
    const { run, database, record } = setup()
    const running = run(async (context) => {
      await context.completeIn(database.begin(), 'text' as never)
      return bytes('x')
    })
    await expect(running).rejects.toThrow('must be given bytes to record')
    expect(await record()).toMatchObject({ state: 'failed_retryable' })
  })

  it('refuses completeIn while another one runs, and twice in one transaction', async () => {
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

  it('refuses completeIn after the work has ended', async () => {
    const { run, database } = setup()
    let kept: RunContext | undefined
    await run((context) => {
      kept = context
      return bytes('done')
    })
    await expect(payIn({ database }, 'late')(kept!)).rejects.toThrow('has ended already')
    expect(database.paid).toEqual([])
  })

  it('refuses to mix completeIn with a transaction of the store', async () => {
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
      await expect(after).rejects.toThrow('completes its key with completeIn')
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

  it('refuses completeIn on a store that does not support it', async () => {
    const { run } = engineFixture()
    const running = run(async (context) => {
      await context.completeIn({}, bytes('x'))
      return bytes('x')
    })
    await expect(running).rejects.toThrow(
      'cannot complete a key in a transaction that the work has begun',
    )
  })

  it('completes the key of work that catches the refusal of completeIn', async () => {
    const { run } = engineFixture()
    const outcome = await run(async (context) => {
      await context.completeIn({}, bytes('x')).catch(() => undefined)
      return bytes('x')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('x') })
  })
})
