/** Work that misbehaves, in the same worker, relay and reconciler as everything else. */
import { setTimeout as sleep } from 'node:timers/promises'
import { operation, type Effect, type Operation } from 'oncekey/durable'
import { idempotencyOf } from 'oncekey/express'
import { z } from 'zod'
import type { AddedOperations, Extension } from '../../examples/payments/extension.ts'
import { checkBody } from '../../examples/payments/input.ts'
import type { OperationParts } from '../../examples/payments/operation-parts.ts'
import type { ProviderEffects } from '../../examples/payments/provider-effects.ts'
import {
  ENDLESS_TOPIC,
  HANGING_OPERATION,
  HANGING_PATH,
  SLOW_ACCOUNT,
  TELLING_OPERATION,
  TELLING_PATH,
} from './names.ts'

const SLOW_MS = 1_500
/** After that, the provider that never answers has not answered. */
const ANSWER_MS = 1_000
const MESSAGES_MAX = 100

const nothing = z.object({})
const messages = z.object({ count: z.int().min(1).max(MESSAGES_MAX) })

/** Never settles, and knows of no signal. */
const never = () => new Promise<never>(() => undefined)

const HANGING_EFFECT: Effect<object> = { send: never, reconcile: never, timeoutMs: ANSWER_MS }

export const BAD_NEIGHBOURS: Extension = {
  effects: slowPayouts,
  operations: badOperations,
  topics: { [ENDLESS_TOPIC]: never },
}

/**
 * A flood of quick work would take the processor from the other tenants, on a machine that all
 * processes share. Slow answers take the places of the workers, which is what is to be divided.
 */
function slowPayouts(own: ProviderEffects): ProviderEffects {
  const { payout } = own
  const { timeoutMs = ANSWER_MS } = payout
  // The time limit of the other payouts, and of each question, stays what it was.
  const inTime = (signal: AbortSignal) => AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)])
  return {
    ...own,
    payout: {
      ...payout,
      timeoutMs: timeoutMs + SLOW_MS,
      send: async (call) => {
        const effect = await payout.send({ ...call, signal: inTime(call.signal) })
        // After it has happened: what is sent later would need more time to be proven.
        if (call.request.account.startsWith(SLOW_ACCOUNT)) await sleep(SLOW_MS)
        return effect
      },
      reconcile: (asked) => payout.reconcile!({ ...asked, signal: inTime(asked.signal) }),
    },
  }
}

function badOperations({ outbox }: OperationParts): AddedOperations {
  const hang = operation({
    name: HANGING_OPERATION,
    input: nothing,
    effects: { answer: HANGING_EFFECT },
    async run(op) {
      await op.external('answer', {})
      return op.finish('end', () => ({ status: 201, body: {} }))
    },
  })
  const tell = operation({
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
