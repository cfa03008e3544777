import type { Effect } from 'oncekey/durable'
import type { EffectKind, EffectRequest, ProviderEffect } from '../provider/contract.ts'
import { providerEffect, type ProviderClient } from './provider-client.ts'
import type { Settings } from './settings.ts'

export type MoneyEffect = Effect<EffectRequest, ProviderEffect>

/** How each kind of effect is had, and found out about. Operations declare what they need. */
export type ProviderEffects = Readonly<Record<EffectKind, MoneyEffect>>

type Patience = Pick<Settings, 'providerTimeoutMs' | 'provenAfterMs' | 'repeatableMs'>

export function providerEffects(client: ProviderClient, patience: Patience): ProviderEffects {
  const { providerTimeoutMs, provenAfterMs, repeatableMs } = patience
  const effectOf = (kind: EffectKind): MoneyEffect => ({
    send: async ({ request, ...call }) => ours(request, await client.send(kind, request, call)),
    reconcile: async ({ request, ...call }) => {
      const found = await client.find(call)
      return found === undefined
        ? { kind: 'not_found' }
        : { kind: 'done', result: ours(request, found) }
    },
    timeoutMs: providerTimeoutMs,
    // Before that, "not found" may mean that the request is still on its way.
    provenAfterMs,
    providerId: ({ id }) => id,
    result: providerEffect,
  })
  return {
    charge: effectOf('charge'),
    hold: effectOf('hold'),
    capture: effectOf('capture'),
    refund: effectOf('refund'),
    // Where nobody can say what became of a payout, it is sent again: the provider knows its key.
    payout: { ...effectOf('payout'), repeatable: { withinMs: repeatableMs } },
  }
}

/** What is under our key must be what we asked for. If not, people have to look. */
function ours(request: EffectRequest, effect: ProviderEffect): ProviderEffect {
  const { reference, amountCents } = effect
  if (reference === request.reference && amountCents === request.amountCents) return effect
  throw new Error(
    `the provider has ${effect.id} (${reference}, ${amountCents}) under the key of ` +
      `${request.reference}, ${request.amountCents}`,
  )
}
