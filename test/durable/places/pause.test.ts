import { expect, it, onTestFinished } from 'vitest'
import type { DurableStore } from '../../../src/core/store/durable-store.ts'
import type { Store } from '../../../src/core/store/store.ts'
import {
  createMaintenance,
  createReconciler,
  createRelay,
  createWorker,
  defineOperation,
} from '../../../src/durable/index.ts'
import { durableFixture } from '../operations/durable-fixture.ts'

/** The same store, which records its calls and whose claims and probes fail while it is down. */
function watched(store: Store) {
  const calls: string[] = []
  const state = { isDown: false }
  const named = <Part extends object>(part: Part): Part =>
    new Proxy(part, {
      get(target, name) {
        const value: unknown = Reflect.get(target, name)
        if (typeof value !== 'function' || name === 'watch') return value
        return (...args: unknown[]): unknown => {
          if (
            state.isDown &&
            (name === 'claim' || name === 'renew') &&
            target === (store as object)
          ) {
            return Promise.reject(new Error('down'))
          }
          calls.push(String(name))
          return Reflect.apply(value, target, args)
        }
      },
    })
  const { phases, outbox, operator } = store.durable!
  const durable: DurableStore = {
    phases: named(phases),
    outbox: named(outbox),
    operator: named(operator),
  }
  const own = named(store)
  return {
    calls,
    state,
    store: new Proxy(own, {
      get: (target, name) => (name === 'durable' ? durable : Reflect.get(target, name)),
    }),
  }
}

it('pauses workers, relays and reconcilers while the store refuses claims', async () => {
  const fixture = durableFixture()
  const { clock, makeEngine } = fixture
  const { store, calls, state } = watched(fixture.store)
  const engine = makeEngine({ store })
  onTestFinished(async () => void (await engine.close({ graceMs: 0 })))

  state.isDown = true
  const request = { scope: { tenant: 'acme', operation: 'pay' }, key: 'k', fingerprint: 'f' }
  for (let n = 0; n < 3; n++) {
    const failed = engine.run({ ...request, key: `${n}` }, () => expect.fail('it must not run'))
    await failed.catch(() => undefined)
  }
  await clock.advanceAsync(100_000)
  expect((await engine.health()).breaker).toBe('open')
  calls.splice(0)

  const stop = new AbortController()
  const idle = defineOperation({ name: 'idle', run: async () => ({ status: 200 }) })
  const running = [
    createWorker({ engine, operations: [idle] }).run(stop.signal),
    createReconciler({ engine, operations: [idle] }).run(stop.signal),
    createRelay({ engine, topics: { receipts: async () => undefined } }).run(stop.signal),
    createMaintenance({ engine, every: { sweepMs: 1_000, reapMs: 1_000, pruneMs: 1_000 } }).run(
      stop.signal,
    ),
  ]
  await clock.advanceAsync(60_000)
  expect(calls).toEqual([])

  state.isDown = false
  await clock.advanceAsync(10_000)
  const names = ['due', 'takeUnknown', 'sweep', 'reap', 'prune', 'claim']
  expect(calls).toEqual(expect.arrayContaining(names))
  stop.abort()
  await clock.advanceAsync(60_000)
  await Promise.all(running)
})

it('ends paused workers when their signal aborts', async () => {
  const fixture = durableFixture()
  const { store, state } = watched(fixture.store)
  const engine = fixture.makeEngine({ store, breaker: { failures: 1 } })
  state.isDown = true
  const request = { scope: { tenant: 'acme', operation: 'pay' }, key: 'k', fingerprint: 'f' }
  await engine.run(request, () => expect.fail('it must not run')).catch(() => undefined)
  const stop = new AbortController()
  const idle = defineOperation({ name: 'idle', run: async () => ({ status: 200 }) })
  const running = [
    createWorker({ engine, operations: [idle] }).run(stop.signal),
    createReconciler({ engine, operations: [idle] }).run(stop.signal),
    createRelay({ engine, topics: { receipts: async () => undefined } }).run(stop.signal),
  ]
  await fixture.clock.advanceAsync(100)
  stop.abort()
  await Promise.all(running)
  await engine.close({ graceMs: 0 })
})
