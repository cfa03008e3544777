import { AsyncLocalStorage } from 'node:async_hooks'
import { isNeverConnected } from '../../core/never-connected.ts'
import type { DynamodbClient, Handler } from './client.ts'
import { noteNothingWritten } from './failures.ts'

/** What the attempts at the writes of one row have come to. */
interface Row {
  mayHaveWritten: boolean
}

const rows = new AsyncLocalStorage<Row>()
/** The row again, only while it writes: what becomes of its reads says nothing. */
const writing = new AsyncLocalStorage<Row | undefined>()

/**
 * Runs the calls of one row. An error of it is noted as one that wrote nothing where the service
 * has refused every attempt at every write.
 *
 * The last error of a call does not tell: the SDK tries a call several times, and a throttled last
 * attempt may follow one whose answer was lost.
 */
export async function watchingWrites<Result>(run: () => Promise<Result>): Promise<Result> {
  const row: Row = { mayHaveWritten: false }
  try {
    return await rows.run(row, run)
  } catch (error) {
    if (!row.mayHaveWritten) noteNothingWritten(error)
    throw error
  }
}

/** A call that writes to the row which is being watched. */
export function asWrite<Answer>(call: () => Promise<Answer>): Promise<Answer> {
  return writing.run(rows.getStore(), call)
}

const heard = new WeakSet<object>()

/** Hears of every attempt that a client makes, once, however many stores share it. */
export function listenToAttempts({ middlewareStack }: DynamodbClient): void {
  if (heard.has(middlewareStack)) return
  heard.add(middlewareStack)
  const middleware =
    (next: Handler): Handler =>
    async (request) => {
      const row = writing.getStore()
      try {
        const answer = await next(request)
        if (row !== undefined && !isRefusal(answer.response)) row.mayHaveWritten = true
        return answer
      } catch (error) {
        if (row !== undefined && !isNeverConnected(error)) row.mayHaveWritten = true
        throw error
      }
    }
  middlewareStack.add(middleware, { step: 'deserialize', priority: 'low' })
}

/**
 * The service refuses with 400: throttled, no rights, no such table, a condition that does not
 * hold. After 500 it may have written. An answer without its id is that of a proxy.
 */
function isRefusal(response: unknown): boolean {
  if (typeof response !== 'object' || response === null) return false
  if (!('statusCode' in response) || response.statusCode !== 400) return false
  if (!('headers' in response)) return false
  const { headers } = response
  if (typeof headers !== 'object' || headers === null) return false
  return Object.keys(headers).some((name) => name.toLowerCase() === 'x-amzn-requestid')
}
