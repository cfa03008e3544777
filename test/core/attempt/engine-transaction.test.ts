import { describe, expect, it } from 'vitest'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import { LeaseLostError, OutcomeUnknownError } from '../../../src/core/errors.ts'
import type { WorkResult, RunContext } from '../../../src/core/attempt/run-context.ts'
import { bytes, engineFixture, gate, standing } from '../engine/engine-fixture.ts'

interface Rows {
  insert(row: string): void
}

const DAY_MS = 86_400_000

/** Work that writes one row together with its key. */
const insert =
  (row: string, result = `result of ${row}`) =>
  (context: RunContext): Promise<Uint8Array> =>
    context.transaction<Rows>((tx) => {
      tx.insert(row)
      return bytes(result)
    })

const setup = (options: Partial<EngineOptions> = {}) => engineFixture(options)

describe('a transaction', () => {
  it('records the result of a transaction, even if the work returns other bytes', async () => {
    const { run, store, clock, kinds } = setup()
    const outcome = await run(async (context) => {
      await insert('a')(context)
      return bytes('something else')
    })
    const expiresAt = new Date(clock.nowMs() + DAY_MS)
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('result of a'), expiresAt })
    expect(store.committed).toEqual(['a'])
    expect(store.asked('settle')).toEqual([])
    expect(await run(insert('b'))).toMatchObject({ kind: 'replayed', result: bytes('result of a') })
    expect(kinds()).toEqual(['reserve_created', 'reserve_replay'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('keeps the result of a transaction as long as extendRetention says', async () => {
    const { run, clock } = setup()
    const outcome = await run((context) => {
      context.extendRetention(3 * DAY_MS)
      return insert('a')(context)
    })
    expect(outcome).toMatchObject({ expiresAt: new Date(clock.nowMs() + 3 * DAY_MS) })
  })

  it('frees the key with proof if a transaction throws, and rethrows the error', async () => {
    const { run, store, record } = setup()
    const declined = new Error('card declined')
    const failing = [
      () => {
        throw declined
      },
      () => Promise.reject(declined),
    ]
    for (const work of failing) {
      await expect(run((context) => context.transaction(work))).rejects.toBe(declined)
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    }
    expect(await run(insert('b'))).toMatchObject({ kind: 'ran' })
    expect(store.committed).toEqual(['b'])
  })

  it('leaves the outcome unknown if a transaction throws the error of a lost call', async () => {
    const { run, state } = setup()
    const lost = () => Promise.reject(new TypeError('fetch failed'))
    await expect(run((context) => context.transaction(lost))).rejects.toThrow('fetch failed')
    expect(await state()).toBe('unknown')
  })

  // The work catches the error of the transaction, and may act by other means.
  it('leaves the outcome unknown if the work fails long after a rollback', async () => {
    const { run, clock, record } = setup({ runTimeoutMs: 1_000 })
    const overrun = gate()
    const running = run(async (context) => {
      await context
        .transaction(() => {
          throw new Error('row is locked')
        })
        .catch(() => undefined)
      await overrun.opened
      throw new Error('broke after acting outside')
    })
    await clock.advanceAsync(1_000)
    expect(await running).toMatchObject({ kind: 'unknown' })
    overrun.open()
    await clock.advanceAsync(0)
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('leaves the outcome unknown if the store does not know the outcome of a commit', async () => {
    const { run, store, record } = setup()
    store.next('transaction', new OutcomeUnknownError('the work ended the transaction itself'))
    const swallow = async (context: RunContext) => {
      await insert('a')(context).catch(() => undefined)
      return bytes('fine')
    }
    expect(await run(swallow)).toMatchObject({ kind: 'doubted' })
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('lets an attempt repeat a transaction that the store could not begin', async () => {
    const { run, store } = setup()
    const begin = store.transaction.bind(store)
    store.transaction = () => {
      store.transaction = begin
      return Promise.reject(new Error('no connection is free'))
    }
    const outcome = await run(async (context) => {
      await expect(insert('a')(context)).rejects.toThrow('no connection is free')
      // The work was never called, so the engine did not probe for a commit.
      expect(store.asked('settle')).toEqual([])
      return insert('b')(context)
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('result of b') })
    expect(store.committed).toEqual(['b'])
  })

  it('rolls back a transaction that does not return bytes', async () => {
    const { run, store, record } = setup()
    for (const result of [undefined, 'text', Promise.resolve('text')]) {
      const work = (context: RunContext) => context.transaction(() => result as never)
      await expect(run(work)).rejects.toThrow('must return bytes to record')
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    }
    expect(store.committed).toEqual([])
  })

  it('lets an attempt repeat a transaction that was rolled back', async () => {
    const { run, store } = setup()
    const outcome = await run(async (context) => {
      const failing = context.transaction(() => Promise.reject(new Error('deadlock')))
      await expect(failing).rejects.toThrow('deadlock')
      return insert('second')(context)
    })
    expect(outcome).toMatchObject({ kind: 'ran' })
    expect(store.committed).toEqual(['second'])
  })

  it('refuses a transaction while another one is open, and after one has committed', async () => {
    const { run, store } = setup()
    const outcome = await run(async (context) => {
      const first = insert('a')(context)
      await expect(insert('b')(context)).rejects.toThrow('is still open')
      await first
      await expect(insert('c')(context)).rejects.toThrow('has committed its result already')
      return bytes('x')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('result of a') })
    expect(store.committed).toEqual(['a'])
  })

  it('waits for a transaction that the work does not await', async () => {
    const { run, store, clock } = setup()
    const { opened, open } = gate<Uint8Array>()
    const running = run((context) => {
      void context.transaction(() => opened)
      context.transaction(() => bytes('beside')).catch(() => undefined)
      return bytes('not awaited')
    })
    await clock.advanceAsync(1_000)
    expect(await standing(running)).toBe('pending')
    open(bytes('committed'))
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('committed') })
    expect(store.asked('settle')).toEqual([])
  })

  it('refuses a transaction after the work has ended', async () => {
    const { run, store } = setup()
    let kept: RunContext | undefined
    await run((context) => {
      kept = context
      return bytes('done')
    })
    await expect(insert('late')(kept!)).rejects.toThrow('has ended already')
    expect(store.committed).toEqual([])
  })

  it('keeps a committed transaction if the work throws after it', async () => {
    const { run, clock } = setup()
    const running = run(async (context) => {
      await insert('a')(context)
      throw new Error('the mail server is down')
    })
    await expect(running).rejects.toThrow('the mail server is down')
    expect(clock.pendingTimers).toBe(0)
    expect(await run(insert('b'))).toMatchObject({ kind: 'replayed', result: bytes('result of a') })
  })

  it('answers with the committed result if the work hangs after the transaction', async () => {
    const { run, clock, kinds } = setup({ runTimeoutMs: 10_000 })
    const running = run(async (context) => {
      await insert('a')(context)
      return new Promise<WorkResult>(() => undefined)
    })
    await clock.advanceAsync(10_000)
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('result of a') })
    expect(kinds()).toEqual(['reserve_created'])
    expect(clock.pendingTimers).toBe(0)
  })
})

describe('a transaction under a lost lease', () => {
  it('commits nothing if the lease is lost while the transaction runs', async () => {
    const { run, node, clock, records, store } = setup({ onLapse: 'rerun' })
    const { opened, open } = gate()
    const running = run((context) =>
      context.transaction<Rows>(async (tx) => {
        await opened
        tx.insert('a')
        return bytes('from A')
      }),
    ).catch((error: unknown) => error)
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_000)
    await records.sweep({ limit: 1 })
    await node()(() => bytes('from B'))
    open()
    expect(await running).toBeInstanceOf(LeaseLostError)
    expect(store.committed).toEqual([])
    expect(await run(insert('c'))).toMatchObject({ kind: 'replayed', result: bytes('from B') })
  })

  it('does not begin a transaction if the lease is already lost', async () => {
    const { run, clock, store } = setup()
    store.always('renew', 'hang')
    const { opened, open } = gate()
    const running = run(async (context) => {
      await opened
      return insert('a')(context)
    }).catch((error: unknown) => error)
    await clock.advanceAsync(60_000)
    open()
    expect(await running).toBeInstanceOf(LeaseLostError)
    expect(store.asked('transaction')).toEqual([])
  })
})

describe('a commit without an answer', () => {
  it('finds a commit that took effect without an answer, and reports no fault', async () => {
    const { run, store, clock, kinds } = setup()
    store.next('transaction', 'lose')
    const outcome = await run(insert('a'))
    const expiresAt = new Date(clock.nowMs() + DAY_MS)
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('result of a'), expiresAt })
    expect(store.committed).toEqual(['a'])
    expect(kinds()).toEqual(['reserve_created'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('proves by a settlement that a commit without an answer did not happen', async () => {
    const { run, store, clock, record, kinds } = setup()
    store.next('transaction', 'fail')
    await expect(run(insert('a'))).rejects.toThrow('transaction failed')
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    expect(kinds()).toEqual(['reserve_created', 'reconcile_scheduled', 'reconcile_resolved'])
    expect(await run(insert('b'))).toMatchObject({ kind: 'ran' })
    expect(store.committed).toEqual(['b'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('leaves the outcome unknown while the store cannot be asked for the commit', async () => {
    const { run, store, clock, state } = setup()
    store.next('transaction', 'lose')
    store.always('settle', 'fail')
    const running = run(insert('a')).catch((error: unknown) => error)
    await clock.advanceAsync(10_000)
    expect(await running).toBeInstanceOf(OutcomeUnknownError)
    store.always('settle', 'ok')
    await clock.advanceAsync(10_000)
    expect(await state()).toBe('completed')
    expect(clock.pendingTimers).toBe(0)
  })

  // The commit took effect without an answer; the work catches the error and returns other bytes.
  it('keeps a commit without an answer if the work catches the error', async () => {
    const { run, store, clock, state } = setup()
    store.next('transaction', 'lose')
    store.always('settle', 'fail')
    const running = run(async (context) => {
      await insert('a')(context).catch(() => undefined)
      store.always('settle', 'ok')
      return bytes('sorry, that failed')
    })
    await clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ kind: 'replayed', result: bytes('result of a') })
    expect(await state()).toBe('completed')
  })

  it('refuses a second transaction after a commit without an answer', async () => {
    const { run, store, clock } = setup()
    store.next('transaction', 'lose')
    store.always('settle', 'fail')
    const running = run(async (context) => {
      await insert('a')(context).catch(() => undefined)
      store.always('settle', 'ok')
      await clock.advanceAsync(5_000)
      await expect(insert('b')(context)).rejects.toThrow('was never answered')
      return bytes('sorry, that failed')
    })
    await clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ kind: 'replayed', result: bytes('result of a') })
    expect(store.committed).toEqual(['a'])
  })
})
