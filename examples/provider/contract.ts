/**
 * What the payment provider speaks over HTTP.
 *
 *   POST /charges, /holds, /captures, /refunds, /payouts     with `Idempotency-Key`
 *     201  the effect, done or declined. The same again under the same key, while it is kept
 *     409  `in_progress`: a request under this key is still being worked on
 *     422  `key_reused`: the key was used for another request
 *     400  `invalid_request`, 413 `body_too_large`
 *     503  `refused`: overloaded. Nothing was done, and nothing will be, for this request.
 *          An earlier one under the same key may well have been done
 *     500  `internal_error`: no word about what was done
 *   GET /effects/:id            200 the effect, or 404
 *   GET /effects?key=…          200 the first effect under this key, or 404. Nothing is forgotten
 *   GET /ledger?after=…&limit=… 200 a `LedgerPage`: all of them, in the order of their sequence
 *   GET /ledger?key=…           the same, of one key: more than one where the key was forgotten
 *   GET /faults                 200 a `FaultsReport`: what goes wrong, and how often it did
 *   PUT /faults                 200 the same. The body is `Faults`, in place of those before
 *   GET /healthz                200, with what became of the webhooks
 *
 * An answer that was given before has `Idempotent-Replayed: true`. An error is a `ProviderError`.
 * Each effect is told to the receiver of webhooks, as a `ProviderEvent`, signed.
 */
export const EFFECT_KINDS = ['charge', 'hold', 'capture', 'refund', 'payout'] as const

export type EffectKind = (typeof EFFECT_KINDS)[number]

export interface EffectRequest {
  readonly amountCents: number
  readonly currency: string
  /** What the caller calls it: for people and for comparing books. */
  readonly reference: string
  /** Who pays or is paid. The provider declines whoever is called `declined`. */
  readonly account: string
  /** The charge that a refund gives back, the hold that a capture takes: an id of ours. */
  readonly of?: string
}

export interface ProviderEffect extends EffectRequest {
  readonly id: string
  readonly kind: EffectKind
  readonly status: 'succeeded' | 'declined'
  /** The idempotency key it came with. */
  readonly key: string
  /** Counts up by one with each effect. */
  readonly sequence: number
  readonly createdAt: string
  /** Why it was declined, for people. */
  readonly declineCode?: string
}

export interface LedgerPage {
  readonly effects: readonly ProviderEffect[]
  /** Where to go on: `after` of the next page. Null on the last one. */
  readonly next: number | null
}

export interface ProviderError {
  readonly error: { readonly code: string; readonly message: string }
}

/** The body of a webhook. `received` says that a request came, the others what became of it. */
export interface ProviderEvent {
  /** The same in every delivery of the event. */
  readonly id: string
  readonly type: 'effect.received' | 'effect.succeeded' | 'effect.declined'
  readonly createdAt: string
  readonly effect: ProviderEffect
}

/** `Provider-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">` */
export const SIGNATURE_HEADER = 'provider-signature'

/** How often each thing goes wrong: 0 never, 1 always. What is not named never does. */
export interface Faults {
  /** The answer takes up to `latencyMaxMs`. */
  readonly latency?: number
  /** 503, and nothing is done. */
  readonly refuse?: number
  /** The connection is cut, and nothing is done. */
  readonly dropRequest?: number
  /** `GET /effects` is answered with 503. */
  readonly refuseQuery?: number
  /** It is done, and the connection is cut instead of an answer. */
  readonly effectThenDrop?: number
  /** It is done, and the answer is 500. */
  readonly effectThen500?: number
  /** The answer is 500 at once, and it is done up to `lateMaxMs` later. */
  readonly lateSuccess?: number
  /** An event is delivered twice or three times. */
  readonly duplicateWebhook?: number
  /** An event is never delivered. */
  readonly lostWebhook?: number
  /** An event is held back until later ones were delivered. */
  readonly webhookOutOfOrder?: number
  /** @default 200 */
  readonly latencyMaxMs?: number
  /** @default 1000 */
  readonly lateMaxMs?: number
}

export interface FaultsReport extends Faults {
  /** How often each has happened since the start of the process. */
  readonly counts: Readonly<Record<string, number>>
}
