/**
 * The HTTP contract of the payment provider.
 *
 *   POST /charges, /holds, /captures, /refunds, /payouts     with `Idempotency-Key`
 *     201  the effect, done or declined. Repeated under the same key while it is retained
 *     409  `in_progress`: a request under this key is in progress
 *     422  `key_reused`: the key was used for another request
 *     400  `invalid_request`, 413 `body_too_large`
 *     503  `refused`: overloaded. This request had no effect and will have none. An earlier
 *          request under the same key may have had one
 *     500  `internal_error`: the outcome is not known
 *   GET /effects/:id            200 the effect, or 404
 *   GET /effects?key=…          200 the first effect under this key, or 404. Kept permanently
 *   GET /ledger?after=…&limit=… 200 a `LedgerPage`: all effects, in the order of their sequence
 *   GET /ledger?key=…           the same for one key: more than one after its retention
 *   GET /faults                 200 a `FaultsReport`: the faults, and how often they occurred
 *   PUT /faults                 200 the same. The body is `Faults`, which replaces the earlier ones
 *   GET /healthz                200, with the state of the webhooks
 *
 * A repeated answer has `Idempotent-Replayed: true`. An error is a `ProviderError`. Each effect is
 * sent to the webhook receiver as a signed `ProviderEvent`.
 */
export const EFFECT_KINDS = ['charge', 'hold', 'capture', 'refund', 'payout'] as const

export type EffectKind = (typeof EFFECT_KINDS)[number]

export interface EffectRequest {
  readonly amountCents: number
  readonly currency: string
  /** The caller's name for the effect, for people and for comparing ledgers. */
  readonly reference: string
  /** The account that pays or is paid. The provider declines the account `declined`. */
  readonly account: string
  /** The id of the charge that a refund returns, or of the hold that a capture takes. */
  readonly of?: string
}

export interface ProviderEffect extends EffectRequest {
  readonly id: string
  readonly kind: EffectKind
  readonly status: 'succeeded' | 'declined'
  /** The idempotency key of the request. */
  readonly key: string
  /** Increases by one with each effect. */
  readonly sequence: number
  readonly createdAt: string
  /** The reason of a decline, for people. */
  readonly declineCode?: string
}

export interface LedgerPage {
  readonly effects: readonly ProviderEffect[]
  /** `after` of the next page. Null on the last one. */
  readonly next: number | null
}

export interface ProviderError {
  readonly error: { readonly code: string; readonly message: string }
}

/** The body of a webhook. `received` reports a request, the other types its outcome. */
export interface ProviderEvent {
  /** The same in every delivery of the event. */
  readonly id: string
  readonly type: 'effect.received' | 'effect.succeeded' | 'effect.declined'
  readonly createdAt: string
  readonly effect: ProviderEffect
}

/** `Provider-Signature: t=<unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">` */
export const SIGNATURE_HEADER = 'provider-signature'

/** The probability of each fault, from 0 (never) to 1 (always). @default 0 for each */
export interface Faults {
  /** The answer takes up to `latencyMaxMs`. */
  readonly latency?: number
  /** Answers 503 without an effect. */
  readonly refuse?: number
  /** Cuts the connection without an effect. */
  readonly dropRequest?: number
  /** Answers `GET /effects` with 503. */
  readonly refuseQuery?: number
  /** Makes the effect, and cuts the connection instead of an answer. */
  readonly effectThenDrop?: number
  /** Makes the effect, and answers 500. */
  readonly effectThen500?: number
  /** Answers 500 at once, and makes the effect up to `lateMaxMs` later. */
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
  /** How often each fault has occurred since the start of the process. */
  readonly counts: Readonly<Record<string, number>>
}
