import type { ErrorRequestHandler, RequestHandler, Response } from 'express'
import { isOncekeyError, type ReplyInit } from 'oncekey'
import { DatabaseFailedError } from '../database/database.ts'

export interface FieldError {
  readonly field: string
  readonly detail: string
}

/** An error in the format of RFC 9457. Clients branch on `code`. */
export interface Problem {
  readonly status: number
  readonly code: string
  readonly title: string
  readonly detail: string
  readonly errors?: readonly FieldError[]
  /** The payment of the problem, if there is one. */
  readonly paymentId?: string
  readonly refundId?: string
  readonly orderId?: string
  readonly transferId?: string
}

/** A problem as the reply of an operation: it is recorded, and replayed. */
export function problemReply(problem: Problem): ReplyInit {
  return {
    status: problem.status,
    headers: { 'Content-Type': 'application/problem+json; charset=utf-8' },
    body: JSON.stringify({ type: typeOf(problem), ...problem }),
  }
}

/**
 * The reply to a late retry whose own row belongs to another request: its key was used before, and
 * the record that would have refused it is gone.
 */
export function keyReusedReply(): ReplyInit {
  return problemReply({
    status: 422,
    code: 'key_reused',
    title: 'The idempotency key was used for another request',
    detail: 'Send the first request again, or use a new key for a request that is really new.',
  })
}

export function sendProblem(res: Response, problem: Problem): void {
  res
    .status(problem.status)
    .type('application/problem+json')
    .send(JSON.stringify({ type: typeOf(problem), ...problem }))
}

function typeOf({ code }: Problem): string {
  return `urn:example:payments:${code.replaceAll('_', '-')}`
}

export const answerNotFound: RequestHandler = (_req, res) => {
  sendProblem(res, {
    status: 404,
    code: 'route_not_found',
    title: 'Not found',
    detail: 'This API has /payments, /refunds, /orders, /transfers and /operations.',
  })
}

/** The last handler. Express recognises error handlers by their four parameters. */
export const answerErrors: ErrorRequestHandler = (error: unknown, _req, res, next) => {
  if (res.headersSent) return next(error)
  const status = clientFaultOf(error)
  if (status !== undefined) {
    return sendProblem(res, {
      status,
      code: 'unreadable_request',
      title: 'The request cannot be read',
      detail: error instanceof Error ? error.message : 'The body is not valid JSON.',
    })
  }
  // For the operator only: an error message may contain internal details. Errors of oncekey are
  // logged as events.
  if (!isOncekeyError(error)) console.error(error)
  const problem = problemOf(error)
  if (problem.status === 503) res.set('Retry-After', '1')
  sendProblem(res, problem)
}

function problemOf(error: unknown): Problem {
  const detail = 'Retry with the same idempotency key.'
  const code = isOncekeyError(error) ? error.code : undefined
  if (code === 'STORE_FAILED' || error instanceof DatabaseFailedError) {
    const title = 'The service cannot reach its database'
    return { status: 503, code: 'database_unavailable', title, detail }
  }
  if (code === 'NOT_EXECUTED') {
    const title = 'The payment provider is not available'
    return { status: 503, code: 'provider_unavailable', title, detail }
  }
  if (code === 'OUTCOME_UNKNOWN') {
    // The guard adds that the outcome is looked into, and when to ask again.
    const title = 'The outcome of the request is not known yet'
    return { status: 409, code: 'outcome_unknown', title, detail }
  }
  if (code === 'LEASE_LOST' || code === 'ENGINE_CLOSED') {
    const title = 'Another process continues the request'
    return { status: 503, code: 'moved_on', title, detail }
  }
  const title = 'Internal error'
  return { status: 500, code: 'internal_error', title, detail }
}

/** Express and its parsers mark client errors with a status. */
function clientFaultOf(error: unknown): number | undefined {
  if (!(error instanceof Error && 'status' in error)) return undefined
  const { status } = error
  return typeof status === 'number' && status >= 400 && status < 500 ? status : undefined
}
