import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions, RunRequest } from '../../../src/core/engine/engine-contract.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { RunOutcome } from '../../../src/core/attempt/run-outcome.ts'
import type { Work } from '../../../src/core/attempt/run-context.ts'
import type { ClaimRequest } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { FaultyStore } from './faulty-store.ts'

export const SCOPE = { tenant: 'acme', operation: 'pay' }
export const KEY = 'the-raw-key'

export const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)
export const text = (result: Uint8Array): string => new TextDecoder().decode(result)

export type EngineFixture = ReturnType<typeof engineFixture>

/** An engine without upkeep on a memory store with injected faults, under a fake clock. */
export function engineFixture(options: Partial<EngineOptions> = {}) {
  const clock = options.clock instanceof FakeClock ? options.clock : new FakeClock()
  const records = memoryStore({ clock })
  const store = new FaultyStore(records, clock)
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    clock,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
    ...options,
  })
  const request: RunRequest = { scope: SCOPE, key: KEY, fingerprint: 'f' }
  return {
    clock,
    store,
    /** The same records, for reads and writes without faults. */
    records,
    engine,
    events,
    kinds: () => events.map(({ kind }) => kind),
    run: (work: Work, changes: Partial<RunRequest> = {}): Promise<RunOutcome> =>
      engine.run({ ...request, ...changes }, work),
    /** A second engine on the same records, like another node. */
    node: (changes: Partial<EngineOptions> = {}) => {
      const other = createEngine({
        store: records,
        clock,
        sweepEveryMs: 0,
        reapEveryMs: 0,
        onEvent: () => undefined,
        ...changes,
      })
      return (work: Work) => other.run(request, work)
    },
    state: async () => (await engine.read({ scope: SCOPE, key: KEY }))?.state,
    record: () => records.read({ identity: identityAsked(store) }),
  }
}

function identityAsked(store: FaultyStore): string {
  const [requests] = store.asked('claim') as (readonly ClaimRequest[])[]
  return requests![0]!.identity
}

/** A promise that the test resolves or rejects. */
export function gate<Value = void>() {
  const { promise, resolve, reject } = Promise.withResolvers<Value>()
  return { opened: promise, open: resolve, fail: reject }
}

/** Work that ends when the test says so. */
export function heldWork() {
  const { opened, open, fail } = gate<Uint8Array>()
  let entered = 0
  return {
    work: () => {
      entered++
      return opened
    },
    end: (result = 'done') => open(bytes(result)),
    fail,
    entered: () => entered,
  }
}

/** Whether a promise is pending, without waiting for it. */
export async function standing(promise: Promise<unknown>): Promise<'pending' | 'settled'> {
  const settled = promise.then(
    () => 'settled' as const,
    () => 'settled' as const,
  )
  return Promise.race([
    settled,
    new Promise<'pending'>((resolve) => {
      setImmediate(resolve, 'pending')
    }),
  ])
}
