/** The programs of processes that are killed. */
import { systemClock, type Clock } from '../../../src/core/time/clock.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { createReconciler } from '../../../src/durable/reconciliation/reconciler.ts'
import { createWorker } from '../../../src/durable/operations/worker.ts'
import { Acquirer, PostOffice, type OnOutside } from './ledgers.ts'
import {
  AMOUNT,
  paymentOperation,
  receiptRelay,
  requestOf,
  textOf,
  type Write,
} from './operation.ts'

/**
 * `inline`: the client waits for the payment; then the receipt is sent. `accepted`: a worker pays.
 * `resumed`: continues the payment of an earlier process that was killed.
 */
export const PROGRAMS = ['inline', 'accepted', 'resumed'] as const

export type Program = (typeof PROGRAMS)[number]

export interface ProgramParts {
  readonly store: Store
  readonly clock: ShiftedClock
  readonly write: Write
  readonly folder: string
  /** Whether the provider recognises its keys. */
  readonly dedups: boolean
  readonly onOutside: OnOutside
  /** Called when the client has its answer. */
  readonly tell: (reply: string) => void
}

const HOUR_MS = 3_600_000

/** The system clock, shifted forward. */
export class ShiftedClock implements Clock {
  shiftMs = 0
  readonly monotonicMs = systemClock.monotonicMs
  readonly after = systemClock.after
  readonly soon = systemClock.soon
  nowMs = () => systemClock.nowMs() + this.shiftMs
}

export function prepare(program: Program, parts: ProgramParts): () => Promise<void> {
  const { store, clock, write, folder, dedups, onOutside, tell } = parts
  const engine = createEngine({ store, clock, sweepEveryMs: 0, reapEveryMs: 0 })
  const acquirer = new Acquirer(folder, { dedups }, onOutside)
  const pay = paymentOperation({ engine, acquirer, write, way: 'asked' })
  const operations = [pay]
  const worker = createWorker({ engine, operations })
  const reconciler = createReconciler({ engine, operations })
  const relay = receiptRelay(engine, new PostOffice(folder, onOutside))
  const request = requestOf(engine, pay)
  switch (program) {
    case 'inline':
      return async () => {
        const outcome = await engine.run(request, pay.work({ amount: AMOUNT }))
        const isAnswer = outcome.kind === 'ran' || outcome.kind === 'replayed'
        if (isAnswer) tell(textOf(outcome.result))
        await relay.runOnce()
      }
    case 'accepted':
      return async () => {
        await engine.run(request, async (context) => {
          await pay.accept(context, { amount: AMOUNT })
          return new Uint8Array(0)
        })
        await worker.runOnce()
        await relay.runOnce()
      }
    case 'resumed':
      return async () => {
        // The lease has ended, but a charge that was sent may still be made.
        clock.shiftMs = HOUR_MS
        await engine.sweep()
        await worker.runOnce()
        // After this time it is certain that the charge was not made.
        clock.shiftMs = 3 * HOUR_MS
        await reconciler.runOnce()
        await worker.runOnce()
        await relay.runOnce()
      }
  }
}
