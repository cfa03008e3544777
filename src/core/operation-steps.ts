/** How the steps of an operation are brought into a store. */
import { sleep, type Clock } from './clock.ts'
import type { PhaseStore, Step, StepOutcome } from './durable-store.ts'
import { InvalidOptionsError, isRejected } from './errors.ts'
import type { StorePort } from './store-port.ts'
import type { Lease, Store } from './store.ts'

const PAUSE_MS_FIRST = 50
const PAUSE_MS_MAX = 1_000

export interface StepParts {
  readonly store: Store
  readonly clock: Clock
  readonly port: StorePort
  readonly tenant: string
  readonly timeoutMs: number
}

export function phasesOf(store: Store): PhaseStore {
  if (store.durable !== undefined) return store.durable.phases
  throw new InvalidOptionsError(
    `the ${store.name} store keeps no operations: use oncekey/sqlite, oncekey/postgres or ` +
      'oncekey/mysql for them',
  )
}

/** Repeating is safe: a step that had taken hold says so again. */
export async function recordStep(
  { store, clock, port, tenant, timeoutMs }: StepParts,
  lease: Lease,
  step: Step,
): Promise<StepOutcome> {
  const phases = phasesOf(store)
  const deadlineMs = clock.monotonicMs() + timeoutMs
  let pauseMs = PAUSE_MS_FIRST
  for (;;) {
    try {
      return await port.step(tenant, (signal) => phases.record(lease, step, signal))
    } catch (error) {
      // Reported by the port as a store error.
      const leftMs = deadlineMs - clock.monotonicMs()
      if (leftMs <= pauseMs || isRejected(error)) throw error
    }
    await sleep(clock, pauseMs)
    pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX)
  }
}
