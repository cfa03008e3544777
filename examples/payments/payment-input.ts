export const CURRENCIES = ['KRW', 'USD'] as const

export type Currency = (typeof CURRENCIES)[number]

export interface PaymentInput {
  readonly customerId: string
  readonly amountCents: number
  readonly currency: Currency
}

export interface FieldError {
  readonly field: string
  readonly detail: string
}

export type CheckedPayment =
  | { readonly kind: 'valid'; readonly payment: PaymentInput }
  | { readonly kind: 'invalid'; readonly errors: readonly FieldError[] }

/** Everything that is wrong at once, so that a client need not ask again for each fault. */
export function checkPayment(body: unknown): CheckedPayment {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    const detail = 'Send a JSON object with Content-Type: application/json.'
    return { kind: 'invalid', errors: [{ field: 'body', detail }] }
  }
  const { customerId, amountCents, currency } = body as Record<string, unknown>
  const errors: FieldError[] = []
  if (typeof customerId !== 'string' || customerId.trim() === '') {
    errors.push({ field: 'customerId', detail: 'customerId must be a non-empty string.' })
  }
  if (!Number.isSafeInteger(amountCents) || Number(amountCents) < 1) {
    errors.push({ field: 'amountCents', detail: 'amountCents must be a whole number, at least 1.' })
  }
  if (!CURRENCIES.some((known) => known === currency)) {
    errors.push({ field: 'currency', detail: `currency must be ${CURRENCIES.join(' or ')}.` })
  }
  if (errors.length > 0) return { kind: 'invalid', errors }
  return { kind: 'valid', payment: { customerId, amountCents, currency } as PaymentInput }
}
