/**
 * A payment in three phases: record, charge, book with a receipt. Its effects are of four kinds.
 */
import type { Outbox } from '../../../src/durable/outbox/outbox.ts'
import type { Effect } from '../../../src/durable/operations/operation-contract.ts'
import { defineOperation, type Operation } from '../../../src/durable/operations/operation.ts'
import { chargeSchema } from '../../durable/operations/durable-fixture.ts'
import { HOSTILE } from './hostile.ts'
import type { DurableNode } from './node.ts'
import type { Charge } from './provider.ts'
import { TIMES } from './times.ts'

/**
 * `askable`: the provider has a query API and charges again on every repeat. `repeatable`: the
 * provider recognises keys for a while and has no query API. `both` has both, `blind` has neither.
 */
export const EFFECT_KINDS = ['askable', 'repeatable', 'both', 'blind'] as const

export type EffectKind = (typeof EFFECT_KINDS)[number]

/** Faults in the code of the operation. */
export type Mood = 'ok' | 'fails_recording' | 'fails_after_charge' | 'fails_booking'

export interface Payment {
  readonly customer: string
}

export interface Receipt {
  readonly recordId: string
  readonly customer: string
}

export const ATTEMPTS_MAX = 6

type ChargeEffect = Effect<unknown, Charge>

export function payments(node: DurableNode, outbox: () => Outbox): Operation<Payment>[] {
  return EFFECT_KINDS.map((kind) => payment(node, outbox, kind))
}

function payment(node: DurableNode, outbox: () => Outbox, kind: EffectKind): Operation<Payment> {
  const { world } = node
  const { store } = world
  return defineOperation({
    name: `pay.${kind}`,
    effects: { charge: effectOf(node, kind) },
    maxAttempts: ATTEMPTS_MAX,
    async run(op, { customer }: Payment) {
      const mood = world.next('moods') ?? 'ok'
      const { recordId } = op
      await op.transaction('record', async (tx) => {
        store.write(tx, { recordId, customer, what: 'recorded', chargeId: undefined })
        await node.turn('records')
        if (mood === 'fails_recording') throw new Error('no room')
      })
      const charge = await op.external('charge', { customer })
      if (mood === 'fails_after_charge') throw new TypeError('it has a bug')
      return op.finish('book', async (tx) => {
        store.write(tx, { recordId, customer, what: 'booked', chargeId: charge.id })
        const receipt: Receipt = { recordId, customer }
        const { tenant } = op
        // Without a partition, only the number of places limits the flood.
        const partition = customer === HOSTILE ? {} : { partition: customer }
        await outbox().add(tx, 'receipt', receipt, { tenant, ...partition })
        await node.turn('books')
        if (mood === 'fails_booking') throw new Error('no such account')
        const { id: chargeId, status } = charge
        const body = { chargeId, attempt: op.attempt }
        return { status: status === 'succeeded' ? 201 : 402, body }
      })
    },
  })
}

function effectOf(node: DurableNode, kind: EffectKind): ChargeEffect {
  const { provider, sabotage, hostile } = node.world
  const isFlood = (request: unknown) =>
    hostile?.isOver === false && (request as Payment).customer === HOSTILE
  const send: ChargeEffect['send'] = async ({ downstreamKey, request, signal }) => {
    if (isFlood(request)) return hostile!.hang(node, signal, true)
    const answer = provider.charge(kind, downstreamKey)
    return (await node.hear('of its charge', answer)) as Charge
  }
  const reconcile: ChargeEffect['reconcile'] = async ({ downstreamKey, request }) => {
    if (isFlood(request)) return { kind: 'not_executed' }
    const found = await node.hear('of its question', provider.ask(downstreamKey))
    if (found === 'pending') return { kind: 'pending' }
    if (found !== undefined) return { kind: 'done', result: found }
    return { kind: sabotage.trustsNotFound === true ? 'not_executed' : 'not_found' }
  }
  const mayAsk = kind === 'askable' || kind === 'both'
  const mayRepeat = kind === 'repeatable' || kind === 'both'
  return {
    send,
    result: chargeSchema,
    timeoutMs: TIMES.answerMs,
    providerId: ({ id }) => id,
    ...(mayAsk ? { reconcile, notFoundIsFinalAfterMs: TIMES.notFoundIsFinalAfterMs } : {}),
    ...(mayRepeat ? { resendWithinMs: TIMES.repeatableMs } : {}),
  }
}
