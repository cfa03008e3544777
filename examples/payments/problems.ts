import type { ErrorRequestHandler, RequestHandler, Response } from 'express'
import type { FieldError } from './payment-input.ts'

/** An error as RFC 9457 writes it. `code` is what clients branch on. */
export interface Problem {
  readonly status: number
  readonly code: string
  readonly title: string
  readonly detail: string
  readonly errors?: readonly FieldError[]
}

export function sendProblem(res: Response, problem: Problem): void {
  const type = `urn:example:payments:${problem.code.replaceAll('_', '-')}`
  res
    .status(problem.status)
    .type('application/problem+json')
    .send(JSON.stringify({ type, ...problem }))
}

export const answerNotFound: RequestHandler = (_req, res) => {
  sendProblem(res, {
    status: 404,
    code: 'route_not_found',
    title: 'There is nothing here',
    detail: 'This API has POST /payments, GET /payments/:id and GET /healthz.',
  })
}

/** The last handler. Four parameters are how Express knows that it takes errors. */
export const answerErrors: ErrorRequestHandler = (error: unknown, _req, res, next) => {
  if (res.headersSent) return next(error)
  const status = clientFaultOf(error)
  if (status === undefined) {
    // For the operator only: an error's text may hold what a client must not see.
    console.error(error)
    return sendProblem(res, {
      status: 500,
      code: 'internal_error',
      title: 'Something went wrong on our side',
      detail: 'Retry with the same idempotency key.',
    })
  }
  sendProblem(res, {
    status,
    code: 'unreadable_request',
    title: 'The request cannot be read',
    detail: error instanceof Error ? error.message : 'The body is not valid JSON.',
  })
}

/** Express and its parsers mark the client's mistakes with a status. */
function clientFaultOf(error: unknown): number | undefined {
  if (!(error instanceof Error && 'status' in error)) return undefined
  const { status } = error
  return typeof status === 'number' && status >= 400 && status < 500 ? status : undefined
}
