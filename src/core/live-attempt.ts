import type { Attempt } from './attempt.ts'
import type { Step } from './durable-store.ts'
import type { EventSubject } from './events.ts'
import type { ExecutionParts, ExecutionRequest } from './execution-parts.ts'
import { phasesOf, recordStep } from './operation-steps.ts'
import type { LiveContext } from './run-context.ts'

interface Live {
  readonly context: LiveContext
  readonly subject: EventSubject
}

/** The attempt of an execution, as its operation sees it. */
export function liveAttempt(
  { store, clock, port, emit }: ExecutionParts,
  { policy, claimed }: ExecutionRequest,
  { context, subject }: Live,
): Attempt {
  const { lease } = claimed
  const { tenant } = subject
  const parts = { store, clock, port, tenant, timeoutMs: policy.settleTimeoutMs }
  return {
    subject,
    attempt: lease.attempt,
    store,
    clock,
    get signal() {
      return context.signal
    },
    from: claimed.from,
    recoveryPoint: claimed.recoveryPoint,
    get isBegun() {
      return context.isBegun
    },
    onLapse: policy.onLapse,
    get retentionMs() {
      return context.retentionMs
    },
    assertHeld: () => context.assertHeld(),
    ask: (call, ask) => port.ask(call, ask),
    begin: (ended) => context.beginOperation(ended),
    advance: (work) => {
      let step: Step | undefined
      const keep = (given: Step): Step => (step = given)
      return context.takeStep(
        () => {
          const phases = phasesOf(store)
          return port.transact(tenant, ({ signal, during }) =>
            phases.advance(
              lease,
              during((tx) => whenGiven(work(tx), keep)),
              signal,
            ),
          )
        },
        () => step?.end,
      )
    },
    record: (step) =>
      context.takeStep(
        () => recordStep(parts, lease, step),
        () => step.end,
        { mustHold: step.phase?.kind !== 'result' },
      ),
    fail: (end) => {
      context.operationEnd ??= end
    },
    get isGoneOnWith() {
      return context.operationEnd !== undefined
    },
    emit,
  }
}

/** Synchronous work stays synchronous: on SQLite it must not let anybody in between. */
function whenGiven(step: Step | Promise<Step>, keep: (step: Step) => Step): Step | Promise<Step> {
  return step instanceof Promise ? step.then(keep) : keep(step)
}
