/**
 * Finds out whether a failed write may have taken effect.
 *
 * Tests: test/stores/dynamodb/attempts.server.test.ts.
 */
import { isNeverConnected } from '../../kit/never-connected.ts'
import { fieldOf, type DynamodbClient, type Handler } from '../client.ts'

/** One call that writes a record. */
interface Call {
  /** Calls to the client that have not ended. A wrapper may call the client more than once. */
  underWay: number
  /** Attempts that the SDK has started. */
  begun: number
  /** Attempts that the service has refused, or that never reached it. */
  refused: number
  /** The last error of the client. */
  error: unknown
}

/** Calls by the version that they write: it is random, and wrappers of the client pass it on. */
const calls = new Map<string, Call>()

/** The writes of one row. */
export class RowWrites {
  /** Whether a write has taken effect, may have, or still may. */
  mayHaveWritten = false

  /** Runs a call that writes this version. */
  async make<Answer>(version: string, write: () => Promise<Answer>): Promise<Answer> {
    const call: Call = { underWay: 0, begun: 0, refused: 0, error: undefined }
    calls.set(version, call)
    try {
      const answer = await write()
      this.mayHaveWritten = true
      return answer
    } catch (error) {
      if (!isRefused(call, error)) this.mayHaveWritten = true
      throw error
    } finally {
      calls.delete(version)
    }
  }
}

/**
 * Whether the service has refused every attempt at the call, and none will follow.
 *
 * The last error of a call does not prove that: the SDK tries a call several times, and a throttled
 * last attempt may follow one whose answer was lost. And if the error is not the client's own, a
 * wrapper may have given up while the SDK pauses before its next attempt.
 */
function isRefused({ underWay, begun, refused, error }: Call, failure: unknown): boolean {
  return underWay === 0 && begun > 0 && refused === begun && error === failure
}

const listenedStacks = new WeakSet<object>()

/** Observes every call and every attempt of a client. Added once, even if stores share a client. */
export function listenToAttempts({ middlewareStack }: DynamodbClient): void {
  if (listenedStacks.has(middlewareStack)) return
  listenedStacks.add(middlewareStack)
  middlewareStack.add(aroundCall, { step: 'initialize', priority: 'high' })
  middlewareStack.add(aroundAttempt, { step: 'deserialize', priority: 'low' })
}

function aroundCall(next: Handler): Handler {
  return async (request) => {
    const call = callOf(request)
    if (call === undefined) return next(request)
    call.underWay++
    try {
      return await next(request)
    } catch (error) {
      call.error = error
      throw error
    } finally {
      call.underWay--
    }
  }
}

function aroundAttempt(next: Handler): Handler {
  return async (request) => {
    const call = callOf(request)
    if (call === undefined) return next(request)
    call.begun++
    try {
      const answer = await next(request)
      if (isRefusal(answer.response)) call.refused++
      return answer
    } catch (error) {
      if (isNeverConnected(error)) call.refused++
      throw error
    }
  }
}

function callOf(request: unknown): Call | undefined {
  const item = fieldOf(fieldOf(request, 'input'), 'Item')
  const version = fieldOf(fieldOf(item, 'version'), 'S')
  return typeof version === 'string' ? calls.get(version) : undefined
}

/**
 * The service refuses with status 400: throttled, no permission, no such table, a failed condition.
 * With status 500 it may have written. An answer without a request id comes from a proxy.
 */
function isRefusal(response: unknown): boolean {
  if (fieldOf(response, 'statusCode') !== 400) return false
  const headers = fieldOf(response, 'headers')
  if (typeof headers !== 'object' || headers === null) return false
  return Object.keys(headers).some((name) => name.toLowerCase() === 'x-amzn-requestid')
}
