import { createHmac, timingSafeEqual } from 'node:crypto'

/** The maximum difference between the clocks, including the time of a delivery. */
export const TOLERANCE_MS = 5 * 60_000

export interface Signed {
  /** The raw bytes: a parsed and rewritten body has another signature. */
  readonly body: string | Uint8Array
  readonly secret: string
  /** Milliseconds since 1970. */
  readonly now: number
}

export interface SignedHeader extends Signed {
  /** The received header, or `undefined` if it is missing. */
  readonly header: string | undefined
  /** @default TOLERANCE_MS */
  readonly toleranceMs?: number
}

export type Verification =
  | { readonly kind: 'valid'; readonly signedAt: Date }
  | {
      readonly kind: 'invalid'
      readonly reason: 'missing' | 'malformed' | 'wrong_signature' | 'too_old' | 'too_new'
    }

const FORM = /^t=(\d{1,12}),v1=([0-9a-f]{64})$/

/** The header value for a body that is sent now. */
export function sign({ body, secret, now }: Signed): string {
  const seconds = String(Math.floor(now / 1000))
  return `t=${seconds},v1=${digest(seconds, body, secret).toString('hex')}`
}

/**
 * Whether a body was signed with the secret, and recently: a recorded delivery is invalid later.
 * The time counts only after the signature check, because the signature covers it.
 */
export function verify(signed: SignedHeader): Verification {
  const { body, header, secret, now, toleranceMs = TOLERANCE_MS } = signed
  if (header === undefined || header === '') return { kind: 'invalid', reason: 'missing' }
  const [, seconds, signature] = FORM.exec(header) ?? []
  if (seconds === undefined || signature === undefined) {
    return { kind: 'invalid', reason: 'malformed' }
  }
  if (!timingSafeEqual(digest(seconds, body, secret), Buffer.from(signature, 'hex'))) {
    return { kind: 'invalid', reason: 'wrong_signature' }
  }
  const signedMs = Number(seconds) * 1000
  const ageMs = now - signedMs
  if (ageMs > toleranceMs) return { kind: 'invalid', reason: 'too_old' }
  if (ageMs < -toleranceMs) return { kind: 'invalid', reason: 'too_new' }
  return { kind: 'valid', signedAt: new Date(signedMs) }
}

function digest(seconds: string, body: string | Uint8Array, secret: string): Buffer {
  return createHmac('sha256', secret).update(`${seconds}.`).update(body).digest()
}
