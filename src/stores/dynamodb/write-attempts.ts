import { isNeverConnected } from '../../core/never-connected.ts'
import type { DynamodbClient, Handler } from './client.ts'
import { fieldOf } from './field-of.ts'

/** What has become of one call that writes a record. */
interface Call {
  /** Times that the client was called and has not ended: a wrapper may call it again. */
  underWay: number
  /** Attempts of the SDK. */
  begun: number
  refused: number
  /** The last error that the client ended with. */
  error: unknown
}

/** By the version that they write: it is random, and no wrapper of the client takes it away. */
const calls = new Map<string, Call>()

/** The writes of one row. */
export class RowWrites {
  /** Some write was carried out, or may have been, or may be yet. */
  mayHaveWritten = false

  /** Makes a call that writes this version. */
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
 * The last error of a call does not tell: the SDK tries a call several times, and a throttled last
 * attempt may follow one whose answer was lost. And where the error is not the client's own, a
 * wrapper may have given the call up while the SDK pauses before its next attempt.
 */
function isRefused({ underWay, begun, refused, error }: Call, failure: unknown): boolean {
  return underWay === 0 && begun > 0 && refused === begun && error === failure
}

const heard = new WeakSet<object>()

/** Hears of every call and every attempt of a client, once, however many stores share it. */
export function listenToAttempts({ middlewareStack }: DynamodbClient): void {
  if (heard.has(middlewareStack)) return
  heard.add(middlewareStack)
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
 * The service refuses with 400: throttled, no rights, no such table, a condition that does not
 * hold. After 500 it may have written. An answer without its id is that of a proxy.
 */
function isRefusal(response: unknown): boolean {
  if (fieldOf(response, 'statusCode') !== 400) return false
  const headers = fieldOf(response, 'headers')
  if (typeof headers !== 'object' || headers === null) return false
  return Object.keys(headers).some((name) => name.toLowerCase() === 'x-amzn-requestid')
}
