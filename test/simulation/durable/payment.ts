/** The payment of three phases: record, charge, book with a receipt; with effects of four kinds. */
import type { Outbox } from '../../../src/durable/outbox.ts'
import type { Effect } from '../../../src/durable/operation-contract.ts'
import { operation, type Operation } from '../../../src/durable/operation.ts'
import { chargeSchema } from '../../durable/durable-fixture.ts'
import { HOSTILE } from './hostile.ts'
import type { DurableNode } from './node.ts'
import type { Charge } from './provider.ts'
import { TIMES } from './times.ts'

/**
 * `askable`: the provider can be asked, and charges again whatever it is sent again. `repeatable`:
 * it recognises keys for a while, and cannot be asked. `both` and `blind`: as they say.
 */
export const EFFECT_KINDS = ['askable', 'repeatable', 'both', 'blind'] as const

export type EffectKind = (typeof EFFECT_KINDS)[number]

/** What goes wrong in the code of the operation itself. */
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
  return operation({
    name: `pay.${kind}`,
    effects: { charge: effectOf(node, kind) },
    attemptsMax: ATTEMPTS_MAX,
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
        // Nothing holds the flood up but the places that it gets.
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
    ...(mayAsk ? { reconcile, provenAfterMs: TIMES.provenAfterMs } : {}),
    ...(mayRepeat ? { repeatable: { withinMs: TIMES.repeatableMs } } : {}),
  }
}
