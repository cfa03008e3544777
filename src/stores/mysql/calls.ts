import { sleep, systemClock, type Clock } from '../../core/clock.ts'
import type { ClaimRequest, Settlement } from '../../core/store.ts'
import { literalOf } from './columns.ts'
import type { Driver, Session } from './driver.ts'
import { isConflict, isLockTimeout, storeFailed } from './failures.ts'
import { SERVER_NOW } from './sql.ts'
import { isUuid, ValueFault } from './values.ts'

/** A deadlock is over when it is reported. */
const TRIES_MAX = 5

/** A lock that nobody has let go of for seconds is asked for once more, and then given up. */
const TIMEOUTS_MAX = 2

const BACKOFF_MS_MAX = 20

/** Makes calls, each on a connection of its own. Repeats those that may be repeated. */
export class Calls {
  readonly #driver: Driver
  readonly #clock: Clock | undefined

  constructor(driver: Driver, clock: Clock | undefined) {
    this.#driver = driver
    this.#clock = clock
  }

  /** The time as SQL: the clock that all nodes share, unless a test brought its own. */
  get now(): string {
    return this.#clock === undefined
      ? SERVER_NOW
      : literalOf('createdAtMs', Math.floor(this.#clock.nowMs()))
  }

  /** Repeated as a whole, with the same tokens: what it had committed, it recognises. */
  async make<Result>(
    operation: string,
    run: (session: Session) => Promise<Result>,
    signal?: AbortSignal,
  ): Promise<Result> {
    let timeouts = 0
    for (let tries = 1; ; tries++) {
      try {
        return await this.#driver.lend(run, signal)
      } catch (error) {
        if (isLockTimeout(error)) timeouts++
        const mayRepeat = isConflict(error) || (isLockTimeout(error) && timeouts < TIMEOUTS_MAX)
        if (!mayRepeat || tries === TRIES_MAX) throw storeFailed(operation, error)
      }
      await sleep(systemClock, Math.random() * BACKOFF_MS_MAX, signal)
    }
  }
}

/**
 * Beyond it the server would turn an `IN` into a join, and one result more might be more than one
 * packet takes: 16 MiB on MariaDB, and hexadecimal digits double every byte.
 */
export const ROWS_MAX = 100
const BYTES_MAX = 4 * 1024 * 1024

/** Answers a batch of any size in pieces, one after the other, in its order. */
export async function inPieces<Request, Outcome>(
  requests: readonly Request[],
  bytesOf: (request: Request) => number,
  call: (piece: readonly Request[]) => Promise<Outcome[]>,
): Promise<Outcome[]> {
  const outcomes: Outcome[] = []
  let piece: Request[] = []
  let bytes = 0
  for (const request of requests) {
    const own = bytesOf(request)
    if (piece.length === ROWS_MAX || (piece.length > 0 && bytes + own > BYTES_MAX)) {
      outcomes.push(...(await call(piece)))
      piece = []
      bytes = 0
    }
    piece.push(request)
    bytes += own
  }
  if (piece.length > 0) outcomes.push(...(await call(piece)))
  return outcomes
}

/**
 * Refuses what no column can hold before anything of the batch is sent: of a call that was
 * rejected, nothing may be written, however many pieces it has.
 */
export function checkClaims(requests: readonly ClaimRequest[]): void {
  check('claim', () => {
    for (const request of requests) {
      literalOf('identity', request.identity)
      literalOf('tenant', request.tenant)
      literalOf('operation', request.operation)
      literalOf('key', request.key)
      literalOf('fingerprint', request.fingerprint)
      literalOf('token', request.token)
      literalOf('leaseUntilMs', request.leaseMs)
      literalOf('expiresAtMs', request.retentionMs)
      literalOf('attempt', request.maxAttempts)
      checkWord(['unknown', 'rerun', 'resume'], request.onLapse)
      checkWord(['new', 'refuse'], request.afterExpiry)
      if (!isUuid(request.recordId)) throw new ValueFault('record_id cannot hold its value')
    }
  })
}

export function checkSettlements(settlements: readonly Settlement[]): void {
  check('settle', () => {
    for (const settlement of settlements) {
      literalOf('identity', settlement.lease.identity)
      literalOf('attempt', settlement.lease.attempt)
      if (settlement.kind === 'complete') checkBytes(settlement.result)
      else literalOf('errorCode', settlement.errorCode)
      if (settlement.kind === 'doubt') literalOf('reconcileAtMs', settlement.reconcileAfterMs)
      else literalOf('expiresAtMs', settlement.retentionMs)
      if (settlement.kind === 'release') checkWord(['proven', 'declared'], settlement.proof)
    }
  })
}

function check(operation: string, run: () => void): void {
  try {
    run()
  } catch (error) {
    throw storeFailed(operation, error)
  }
}

function checkWord(words: readonly string[], word: unknown): void {
  if (!words.some((candidate) => candidate === word)) throw new ValueFault('not a word we know')
}

export function checkBytes(value: unknown): void {
  if (!(value instanceof Uint8Array)) throw new ValueFault('a result is not a Uint8Array')
}
