import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { Work } from '../../../src/core/attempt/run-context.ts'
import type { Completion, Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, gate, SCOPE, standing } from './engine-fixture.ts'

const TIMEOUT_MS = 1_000
const REQUEST = { scope: SCOPE, key: 'k', fingerprint: 'f' }

/** An engine on a memory store in which the test replaces some calls. */
function setup(replace: (records: Store) => Partial<Store>) {
  const clock = new FakeClock()
  const records = memoryStore({ clock })
  const calls = ['claim', 'settle', 'renew', 'resolve', 'sweep', 'reap', 'read', 'list'] as const
  const bound = Object.fromEntries(calls.map((call) => [call, records[call].bind(records)]))
  const store = { name: 'signals', ...bound, ...replace(records) } as Store
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    clock,
    storeTimeoutMs: TIMEOUT_MS,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
  })
  return { clock, engine, events, run: (work: Work) => engine.run(REQUEST, work) }
}

/** The error of a rejected call. The handler is attached at once. */
const failureOf = (call: Promise<unknown>) => call.catch((error: unknown) => error)

const never = () => new Promise<never>(() => undefined)

describe('the signal of a store call', () => {
  it('the signal of a store call is aborted when a claim times out', async () => {
    const asked = gate<AbortSignal>()
    const { clock, run } = setup(() => ({
      claim: (_, signal) => {
        asked.open(signal!)
        return never()
      },
    }))
    const refused = failureOf(run(() => bytes('x')))
    const signal = await asked.opened
    clock.advance(TIMEOUT_MS - 1)
    expect(signal.aborted).toBe(false)
    clock.advance(1)
    expect(await refused).toMatchObject({ failure: 'unavailable' })
    expect(signal.aborted).toBe(true)
    expect(signal.reason).toMatchObject({ message: 'no answer within 1000 ms' })
  })

  it('the signal of a store call is not aborted after the store has answered', async () => {
    const signals: (AbortSignal | undefined)[] = []
    const { clock, run } = setup((records) => ({
      claim: (requests, signal) => {
        signals.push(signal)
        return records.claim(requests)
      },
      settle: (settlements, signal) => {
        signals.push(signal)
        return records.settle(settlements)
      },
    }))
    await run(() => bytes('x'))
    clock.advance(10 * TIMEOUT_MS)
    expect(signals.map((signal) => signal?.aborted)).toEqual([false, false])
  })
})

interface Transaction {
  readonly work: (tx: unknown) => Completion | Promise<Completion>
  readonly signal: AbortSignal | undefined
}

/** A store whose transactions the test controls. */
function transactional() {
  const begun = gate<Transaction>()
  const fixture = setup(() => ({
    transaction: (_, work, signal) => {
      begun.open({ work, signal })
      return never()
    },
  }))
  return { ...fixture, begun: begun.opened }
}

describe('the signal of a transaction', () => {
  it('the signal of a transaction is aborted when it does not begin in time', async () => {
    const { clock, run, begun, events } = transactional()
    let ran = 0
    const refused = failureOf(
      run((context) =>
        context.transaction(() => {
          ran++
          return bytes('x')
        }),
      ),
    )
    const { work, signal } = await begun
    clock.advance(TIMEOUT_MS)
    expect(await refused).toMatchObject({ operation: 'begin a transaction' })
    expect(signal?.aborted).toBe(true)
    expect(() => work({})).toThrow('this transaction has failed already')
    expect(ran).toBe(0)
    expect(events).toContainEqual(
      expect.objectContaining({ kind: 'store_error', call: 'begin a transaction' }),
    )
  })

  it('the signal of a transaction is aborted when the commit hangs', async () => {
    const { clock, run, begun } = transactional()
    const slow = gate<Uint8Array>()
    const refused = failureOf(run((context) => context.transaction(() => slow.opened)))
    const { work, signal } = await begun
    const given = work({})
    clock.advance(5 * TIMEOUT_MS)
    expect(signal?.aborted).toBe(false)
    slow.open(bytes('x'))
    await given
    clock.advance(TIMEOUT_MS)
    expect(signal?.aborted).toBe(true)
    expect(await refused).toMatchObject({ operation: 'commit a transaction' })
  })

  it('the signal of a transaction is aborted when the rollback hangs', async () => {
    const { clock, run, begun } = transactional()
    const refused = failureOf(
      run((context) =>
        context.transaction(() => {
          throw new Error('no stock')
        }),
      ),
    )
    const { work, signal } = await begun
    expect(() => work({})).toThrow('no stock')
    clock.advance(TIMEOUT_MS)
    expect(await refused).toMatchObject({ message: 'no stock' })
    expect(signal?.aborted).toBe(true)
  })

  it('no timer is left when the work ends after its transaction', async () => {
    const slow = gate<Uint8Array>()
    const { clock, run } = setup(() => ({
      transaction: (_, work) => {
        void Promise.resolve(work({})).catch(() => undefined)
        return Promise.reject(new Error('the connection is gone'))
      },
    }))
    const refused = failureOf(run((context) => context.transaction(() => slow.opened)))
    clock.advance(0)
    slow.open(bytes('late'))
    expect(await refused).toMatchObject({ message: 'the connection is gone' })
    await standing(refused)
    expect(clock.pendingTimers).toBe(0)
  })
})
