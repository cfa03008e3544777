/** Operations and topics that hang, in the same worker, relay and reconciler as all others. */
import { setTimeout as sleep } from 'node:timers/promises'
import { defineOperation, type Effect, type Operation } from 'oncekey/durable'
import { idempotencyOf } from 'oncekey/express'
import { z } from 'zod'
import type { AddedOperations, Extension } from '../../examples/payments/extension.ts'
import { checkBody } from '../../examples/payments/http/input.ts'
import type { OperationParts } from '../../examples/payments/operation-parts.ts'
import type { ProviderEffects } from '../../examples/payments/provider/provider-effects.ts'
import {
  ENDLESS_TOPIC,
  HANGING_OPERATION,
  HANGING_PATH,
  SLOW_ACCOUNT,
  TELLING_OPERATION,
  TELLING_PATH,
} from './names.ts'

const SLOW_MS = 1_500
/** Timeout for the provider that never answers. */
const ANSWER_MS = 1_000
const MESSAGES_MAX = 100

const nothing = z.object({})
const messages = z.object({ count: z.int().min(1).max(MESSAGES_MAX) })

/** Never settles, and ignores signals. */
const never = () => new Promise<never>(() => undefined)

const HANGING_EFFECT: Effect<object> = { send: never, reconcile: never, timeoutMs: ANSWER_MS }

export const BAD_NEIGHBOURS: Extension = {
  effects: slowPayouts,
  operations: badOperations,
  topics: { [ENDLESS_TOPIC]: never },
}

/**
 * A flood of fast work would take processor time from the other tenants, because all processes
 * share one machine. Slow answers occupy the places of the workers, whose division is tested.
 */
function slowPayouts(own: ProviderEffects): ProviderEffects {
  const { payout } = own
  const { timeoutMs = ANSWER_MS } = payout
  // The time limits of the other payouts and of each query stay unchanged.
  const inTime = (signal: AbortSignal) => AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)])
  return {
    ...own,
    payout: {
      ...payout,
      timeoutMs: timeoutMs + SLOW_MS,
      send: async (call) => {
        const effect = await payout.send({ ...call, signal: inTime(call.signal) })
        // Delayed after the effect: a later effect would need more time until "not found" is proof.
        if (call.request.account.startsWith(SLOW_ACCOUNT)) await sleep(SLOW_MS)
        return effect
      },
      reconcile: (asked) => payout.reconcile!({ ...asked, signal: inTime(asked.signal) }),
    },
  }
}

function badOperations({ outbox }: OperationParts): AddedOperations {
  const hang = defineOperation({
    name: HANGING_OPERATION,
    input: nothing,
    effects: { answer: HANGING_EFFECT },
    async run(op) {
      await op.external('answer', {})
      return op.finish('end', () => ({ status: 201, body: {} }))
    },
  })
  const tell = defineOperation({
    name: TELLING_OPERATION,
    input: messages,
    run: (op, { count }) =>
      op.finish('tell', async (tx) => {
        const { tenant } = op
        for (let number = 0; number < count; number++) {
          await outbox.add(tx, ENDLESS_TOPIC, { number }, { tenant })
        }
        return { status: 201, body: { count } }
      }),
  })
  return {
    operations: [hang, tell],
    mount(app, { json, guard }) {
      const accept = (path: string, schema: z.ZodType, accepted: Operation<never>) =>
        app.post(path, json, checkBody(schema), guard.with(accepted.route), async (req) => {
          await accepted.accept(idempotencyOf(req), req.body as never)
        })
      accept(HANGING_PATH, nothing, hang)
      accept(TELLING_PATH, messages, tell)
    },
  }
}
