import { describe, expect, it } from 'vitest'
import type { EngineOptions } from '../../src/core/engine.ts'
import { LeaseLostError, OutcomeUnknownError } from '../../src/core/errors.ts'
import type { WorkEnd } from '../../src/core/execution.ts'
import type { RunContext } from '../../src/core/run-context.ts'
import { bytes, engineFixture, gate, standing } from './engine-fixture.ts'

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
  it('records its result, whatever the work returns after it', async () => {
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

  it('is kept as long as the work asked for', async () => {
    const { run, clock } = setup()
    const outcome = await run((context) => {
      context.extendRetention(3 * DAY_MS)
      return insert('a')(context)
    })
    expect(outcome).toMatchObject({ expiresAt: new Date(clock.nowMs() + 3 * DAY_MS) })
  })

  it('that throws proves that nothing happened, and its error is thrown on', async () => {
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

  it('that throws a lost call proves nothing', async () => {
    const { run, state } = setup()
    const lost = () => Promise.reject(new TypeError('fetch failed'))
    await expect(run((context) => context.transaction(lost))).rejects.toThrow('fetch failed')
    expect(await state()).toBe('unknown')
  })

  // The transaction fails, is caught, and the work goes on by other means.
  it('proves nothing about what the work does after it', async () => {
    const { run, clock, record } = setup({ maxRunMs: 1_000 })
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

  it('whose store cannot tell what became of it leaves the outcome unknown', async () => {
    const { run, store, record } = setup()
    store.next('transaction', new OutcomeUnknownError('the work ended the transaction itself'))
    const swallow = async (context: RunContext) => {
      await insert('a')(context).catch(() => undefined)
      return bytes('fine')
    }
    expect(await run(swallow)).toMatchObject({ kind: 'doubted' })
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('that the store could not begin has nothing to commit, and may be tried again', async () => {
    const { run, store } = setup()
    const begin = store.transaction.bind(store)
    store.transaction = () => {
      store.transaction = begin
      return Promise.reject(new Error('no connection is free'))
    }
    const outcome = await run(async (context) => {
      await expect(insert('a')(context)).rejects.toThrow('no connection is free')
      // Nothing had to be found out: the work was never entered.
      expect(store.asked('settle')).toEqual([])
      return insert('b')(context)
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('result of b') })
    expect(store.committed).toEqual(['b'])
  })

  it('that returns no bytes is rolled back', async () => {
    const { run, store, record } = setup()
    for (const result of [undefined, 'text', Promise.resolve('text')]) {
      const work = (context: RunContext) => context.transaction(() => result as never)
      await expect(run(work)).rejects.toThrow('must return bytes to record')
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    }
    expect(store.committed).toEqual([])
  })

  it('may be tried again by the same attempt after it was rolled back', async () => {
    const { run, store } = setup()
    const outcome = await run(async (context) => {
      const failing = context.transaction(() => Promise.reject(new Error('deadlock')))
      await expect(failing).rejects.toThrow('deadlock')
      return insert('second')(context)
    })
    expect(outcome).toMatchObject({ kind: 'ran' })
    expect(store.committed).toEqual(['second'])
  })

  it('commits once: a second one, and one beside it, are refused', async () => {
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

  it('is waited for where the work does not wait for it', async () => {
    const { run, store, clock } = setup()
    const { opened, open } = gate<Uint8Array>()
    const running = run((context) => {
      void context.transaction(() => opened)
      context.transaction(() => bytes('beside')).catch(() => undefined)
      return bytes('not waited for')
    })
    await clock.advanceAsync(1_000)
    expect(await standing(running)).toBe('pending')
    open(bytes('committed'))
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('committed') })
    expect(store.asked('settle')).toEqual([])
  })

  it('is refused once the work has ended', async () => {
    const { run, store } = setup()
    let kept: RunContext | undefined
    await run((context) => {
      kept = context
      return bytes('done')
    })
    await expect(insert('late')(kept!)).rejects.toThrow('has ended already')
    expect(store.committed).toEqual([])
  })

  it('of work that throws after it is committed all the same', async () => {
    const { run, clock } = setup()
    const running = run(async (context) => {
      await insert('a')(context)
      throw new Error('the mail server is down')
    })
    await expect(running).rejects.toThrow('the mail server is down')
    expect(clock.pendingTimers).toBe(0)
    expect(await run(insert('b'))).toMatchObject({ kind: 'replayed', result: bytes('result of a') })
  })

  it('is the answer where the work hangs after it', async () => {
    const { run, clock, kinds } = setup({ maxRunMs: 10_000 })
    const running = run(async (context) => {
      await insert('a')(context)
      return new Promise<WorkEnd>(() => undefined)
    })
    await clock.advanceAsync(10_000)
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('result of a') })
    expect(kinds()).toEqual(['reserve_created'])
    expect(clock.pendingTimers).toBe(0)
  })
})

describe('a transaction that finds its lease gone', () => {
  it('commits nothing', async () => {
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

  it('does not begin', async () => {
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
  it('that took hold is found out, and is no alarm', async () => {
    const { run, store, clock, kinds } = setup()
    store.next('transaction', 'lose')
    const outcome = await run(insert('a'))
    const expiresAt = new Date(clock.nowMs() + DAY_MS)
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('result of a'), expiresAt })
    expect(store.committed).toEqual(['a'])
    expect(kinds()).toEqual(['reserve_created'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('that did not take hold is proven by the doubt that did', async () => {
    const { run, store, clock, record, kinds } = setup()
    store.next('transaction', 'fail')
    await expect(run(insert('a'))).rejects.toThrow('transaction failed')
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    expect(kinds()).toEqual(['reserve_created', 'reconcile_scheduled', 'reconcile_resolved'])
    expect(await run(insert('b'))).toMatchObject({ kind: 'ran' })
    expect(store.committed).toEqual(['b'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('that cannot be found out leaves the outcome unknown until the record tells', async () => {
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

  // The commit took hold unanswered; the work catches the error, and answers as it thinks best.
  it('is not contradicted by work that swallows the error', async () => {
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

  it('is not repeated by work that tries again', async () => {
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
