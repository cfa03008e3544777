import type { RequestHandler } from 'express'
import { z } from 'zod'
import { sendProblem } from './problems.ts'

export const CURRENCIES = ['EUR', 'JPY', 'KRW', 'USD'] as const

/** Ten million in most currencies: more is a mistake. And sums stay far below 2^53. */
const AMOUNT_CENTS_MAX = 1_000_000_000

/** Amounts in the smallest unit, as whole numbers: money is never a fraction. */
export const amountCents = z.int().min(1).max(AMOUNT_CENTS_MAX)

export const currency = z.enum(CURRENCIES)

/** What databases, logs and providers can all hold: no control characters, no broken Unicode. */
export const identifier = z
  .string()
  .regex(/^(?=.*\S)\P{C}{1,64}$/u, 'must be 1 to 64 printable characters')

/** Ids of ours are UUIDs. Whatever else a path holds is the id of nothing. */
export function isId(text: string): boolean {
  return /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)
}

const NO_OBJECT = {
  field: 'body',
  detail: 'Send a JSON object with Content-Type: application/json.',
}

/**
 * Answers 400 with everything that is wrong at once. It stands before the guard: nothing is
 * recorded, and the client may correct its request and keep its key. (So a schema may only become
 * wider: one that became stricter would turn away the retry of what it once let in.)
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
