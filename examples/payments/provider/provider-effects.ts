import type { Effect } from 'oncekey/durable'
import type { EffectKind, EffectRequest, ProviderEffect } from '../../provider/contract.ts'
import { providerEffect, type ProviderClient } from './provider-client.ts'
import type { Settings } from '../settings.ts'

export type MoneyEffect = Effect<EffectRequest, ProviderEffect>

/** How to make each kind of effect, and how to query it. Operations name what they need. */
export type ProviderEffects = Readonly<Record<EffectKind, MoneyEffect>>

type ProviderTimes = Pick<Settings, 'providerTimeoutMs' | 'notFoundIsFinalAfterMs' | 'repeatableMs'>

export function providerEffects(client: ProviderClient, patience: ProviderTimes): ProviderEffects {
  const { providerTimeoutMs, notFoundIsFinalAfterMs, repeatableMs } = patience
  const effectOf = (kind: EffectKind): MoneyEffect => ({
    // The call is passed on as it is: only a key that is sent counts as used.
    send: async (call) => requireMatch(call.request, await client.send(kind, call.request, call)),
    reconcile: async ({ request, ...call }) => {
      const found = await client.find(call)
      return found === undefined
        ? { kind: 'not_found' }
        : { kind: 'done', result: requireMatch(request, found) }
    },
    timeoutMs: providerTimeoutMs,
    // Before that, "not found" may mean that the request is still in transit.
    notFoundIsFinalAfterMs,
    providerId: ({ id }) => id,
    result: providerEffect,
  })
  return {
    charge: effectOf('charge'),
    hold: effectOf('hold'),
    capture: effectOf('capture'),
    refund: effectOf('refund'),
    // A payout with an unknown outcome is sent again: the provider recognises its key.
    payout: { ...effectOf('payout'), resendWithinMs: repeatableMs },
  }
}

/** The effect under our key must match our request. Otherwise an operator has to check it. */
function requireMatch(request: EffectRequest, effect: ProviderEffect): ProviderEffect {
  const { reference, amountCents } = effect
  if (reference === request.reference && amountCents === request.amountCents) return effect
  throw new Error(
    `the provider has ${effect.id} (${reference}, ${amountCents}) under the key of ` +
      `${request.reference}, ${request.amountCents}`,
  )
}
