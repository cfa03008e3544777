import type { RequestHandler } from 'express'
import { z } from 'zod'
import { sendProblem } from './problems.ts'

export const CURRENCIES = ['EUR', 'JPY', 'KRW', 'USD'] as const

/** Ten million in most currencies: more is a mistake. Sums stay far below 2^53. */
const AMOUNT_CENTS_MAX = 1_000_000_000

/** Amounts are whole numbers in the smallest unit: money is never a fraction. */
export const amountCents = z.int().min(1).max(AMOUNT_CENTS_MAX)

export const currency = z.enum(CURRENCIES)

/** Safe for databases, logs and providers: no control characters, no broken Unicode. */
export const identifier = z
  .string()
  .regex(/^(?=.*\S)\P{C}{1,64}$/u, 'must be 1 to 64 printable characters')

/** Our ids are UUIDs. Any other path segment is no id. */
export function isId(text: string): boolean {
  return /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)
}

const NO_OBJECT = {
  field: 'body',
  detail: 'Send a JSON object with Content-Type: application/json.',
}

/**
 * Answers 400 with all errors at once. Runs before the guard: nothing is recorded, and the client
 * can correct its request and keep its key. (So a schema may only become wider: a stricter one
 * would reject the retry of a request that it accepted before.)
 */
export function checkBody(schema: z.ZodType): RequestHandler {
  return (req, res, next) => {
    const checked = schema.safeParse(req.body)
    if (checked.success) return next()
    const errors = checked.error.issues.map(({ path, message }) =>
      path.length === 0 ? NO_OBJECT : { field: path.join('.'), detail: message },
    )
    sendProblem(res, {
      status: 400,
      code: 'invalid_request',
      title: 'The request is not valid',
      detail: errors.map(({ field, detail }) => `${field}: ${detail}`).join('; '),
      errors,
    })
  }
}
