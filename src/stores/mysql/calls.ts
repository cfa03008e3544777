/** Runs calls on connections of the pool, in pieces of bounded size, and repeats conflicts. */
import { sleep, systemClock, type Clock } from '../../core/time/clock.ts'
import { ValueFault } from '../kit/value-fault.ts'
import { literalOf } from './columns.ts'
import type { Driver, Session } from './driver/driver.ts'
import { isConflict, isLockTimeout, storeFailed } from './failures.ts'
import { SERVER_NOW } from './sql.ts'

/** A deadlock has ended when the server reports it, so the call can be repeated soon. */
const TRIES_MAX = 5

/** A lock that was not released for seconds is tried a second time, and then the call fails. */
const TIMEOUTS_MAX = 2

const BACKOFF_MS_MAX = 20

/** Runs each call on its own connection. Repeats calls that failed with a conflict. */
export class Calls {
  readonly #driver: Driver
  readonly #clock: Clock | undefined

  constructor(driver: Driver, clock: Clock | undefined) {
    this.#driver = driver
    this.#clock = clock
  }

  /** The current time as SQL: from the database, which all nodes share, or from a test's clock. */
  get now(): string {
    return this.#clock === undefined
      ? SERVER_NOW
      : literalOf('createdAtMs', Math.floor(this.#clock.nowMs()))
  }

  /** A repeated call uses the same tokens, so it recognises what it has committed before. */
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
 * With more rows the server would turn an `IN` into a join. With more bytes the statement could
 * exceed the largest packet: 16 MiB on MariaDB, and hexadecimal digits double every byte.
 */
export const ROWS_MAX = 100
export const BYTES_MAX = 4 * 1024 * 1024

/** Runs a batch of any size in pieces, one after the other. Keeps the order of the outcomes. */
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

/** For requests of a fixed small size. */
export function withoutBytes(): number {
  return 0
}

/** Runs checks that throw a `ValueFault`, and reports it as a failure of `operation`. */
export function checkValues(operation: string, check: () => void): void {
  try {
    check()
  } catch (error) {
    throw storeFailed(operation, error)
  }
}

export function checkWord(words: readonly string[], word: unknown): void {
  if (words.some((candidate) => candidate === word)) return
  throw new ValueFault(`a value is not one of ${words.join(', ')}`)
}

export function checkBytes(value: unknown): void {
  if (!(value instanceof Uint8Array)) throw new ValueFault('a result is not a Uint8Array')
}
