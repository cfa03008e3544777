import { inRounds } from '../kit/rounds.ts'
import { Slots } from '../kit/slots.ts'
import type { Calls } from './calls.ts'
import { storeFailed } from './failures.ts'

/** Rows of one call that run at once. */
const ROWS_AT_ONCE = 16

export interface RowWork<Request, Outcome> {
  /** For error messages. */
  readonly operation: string
  /** Throws for a row that the table cannot hold. All rows are checked before any is sent. */
  readonly check: (request: Request) => void
  /** Rows with the same key run one after the other. */
  readonly keyOf: (request: Request) => string
  readonly run: (request: Request) => Promise<Outcome>
}

/**
 * Runs each row of a store call separately, up to `ROWS_AT_ONCE` of them at once. Settles only
 * after all rows have settled, so that no row is still running when the caller gets its answer.
 */
export function runRows<Request, Outcome>(
  calls: Calls,
  work: RowWork<Request, Outcome>,
  requests: readonly Request[],
  signal: AbortSignal | undefined,
): Promise<Outcome[]> {
  return calls.until(signal, () => runAll(work, requests))
}

async function runAll<Request, Outcome>(
  { operation, check, keyOf, run }: RowWork<Request, Outcome>,
  requests: readonly Request[],
): Promise<Outcome[]> {
  const slots = new Slots(ROWS_AT_ONCE)
  try {
    for (const request of requests) check(request)
    return await inRounds(requests, keyOf, async (round) => {
      const settled = await Promise.allSettled(
        round.map((request) => slots.use(() => run(request))),
      )
      return settled.map((row) => {
        if (row.status === 'rejected') throw row.reason
        return row.value
      })
    })
  } catch (error) {
    throw storeFailed(operation, error, requests.length === 1)
  }
}
