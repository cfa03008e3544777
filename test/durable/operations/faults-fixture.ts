/** Payments at a provider with faults, with a worker, a reconciler and an operator. */
import {
  createOperator,
  createReconciler,
  createWorker,
  type Effect,
} from '../../../src/durable/index.ts'
import { chargeSchema, durableFixture, payment, type Payment } from './durable-fixture.ts'
import { entriesOf } from '../reconciliation/entries.ts'
import type { Charge, Provider } from './provider.ts'

/**
 * How the outcome of a charge is found out: by `reconcile`, by `resend` (the provider recognises
 * the key), or only by an `operator`.
 */
export const WAYS = ['reconcile', 'resend', 'operator'] as const

export type Way = (typeof WAYS)[number]

export const PROVEN_AFTER_MS = 10 * 60_000
export const REPEATABLE_MS = 24 * 3_600_000
export const TIMEOUT_MS = 30_000

/** Shorter than the pause between two tries of the reconciler. */
const STEP_MS = 60_000
const STEPS_MAX = 3_000

export type FaultsFixture = ReturnType<typeof faultsFixture>

export function faultsFixture(way: Way, changes: Partial<Effect<Payment, Charge>> = {}) {
  const fixture = durableFixture()
  const { engine, provider, clock, path } = fixture
  const pay = payment({ ...effectOf(provider, way), ...changes })
  const operations = [pay]
  const worker = createWorker({ engine, operations })
  const reconciler = createReconciler({ engine, operations })
  const operator = createOperator({ engine, operations })
  const record = () => fixture.record(pay)

  /** Advances the clock by this time, with passes of the worker and the reconciler. */
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= STEP_MS) {
      await clock.advanceAsync(Math.min(left, STEP_MS))
      await engine.sweep()
      await worker.runOnce()
      await reconciler.runOnce()
      await worker.runOnce()
    }
  }
  const isAtRest = async () => {
    const { state, reconcileAt } = await record()
    return state === 'completed' || (state === 'unknown' && reconcileAt === undefined)
  }
  return {
    ...fixture,
    pay,
    worker,
    reconciler,
    operator,
    record,
    pass,
    /** A request of the client: its reply, or the code of its error. */
    ask: () => fixture.run(pay, { amount: 5 }).catch((error: unknown) => ({ kind: codeOf(error) })),
    /** Advances the clock until the payment is completed or waits for an operator. */
    rest: async () => {
      for (let step = 0; step < STEPS_MAX; step++) {
        if (await isAtRest()) return
        await pass(STEP_MS)
      }
      throw new Error(`it is ${(await record()).state} and never comes to rest`)
    },
    downstreamKey: () => provider.calls[0]!,
    entries: () => entriesOf(path),
    waitsForOperator: async () => {
      const { recordId } = await record()
      return (await operator.deadLetters()).records.some((one) => one.recordId === recordId)
    },
  }
}

function codeOf(error: unknown): string {
  const { code } = error as { code?: unknown }
  return typeof code === 'string' ? code : 'error'
}

function effectOf(provider: Provider, way: Way): Effect<Payment, Charge> {
  const effect: Effect<Payment, Charge> = {
    send: async ({ request, downstreamKey }) =>
      (await provider.charge(request, downstreamKey)) as Charge,
    result: chargeSchema,
    providerId: ({ id }) => id,
    timeoutMs: TIMEOUT_MS,
  }
  switch (way) {
    case 'reconcile':
      return {
        ...effect,
        reconcile: async ({ downstreamKey }) => {
          const charge = await provider.query(downstreamKey)
          return charge === undefined ? { kind: 'not_found' } : { kind: 'done', result: charge }
        },
        notFoundIsFinalAfterMs: PROVEN_AFTER_MS,
      }
    case 'resend':
      return { ...effect, resendWithinMs: REPEATABLE_MS }
    case 'operator':
      return effect
  }
}
