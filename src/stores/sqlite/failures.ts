import { sleep, systemClock } from '../../core/time/clock.ts'
import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'
import { ValueFault } from '../kit/value-fault.ts'

/** Primary result codes of SQLite (the low byte of an extended one). */
const BUSY = 5
const READ_ONLY = 8
const DISK_IO = 10
const CORRUPT = 11
const FULL = 13
const CANNOT_OPEN = 14
const TOO_BIG = 18
const CONSTRAINT = 19
const MISMATCH = 20
const NOT_A_DATABASE = 26

/** Errors caused by one row. All others, except value faults, are failures of the database. */
const ROW_FAULTS: readonly unknown[] = [TOO_BIG, CONSTRAINT, MISMATCH]

/**
 * Errors of node:sqlite for a value that no column can hold, thrown before SQLite sees it, and for
 * a value in a row that no JavaScript number can hold.
 */
const VALUE_FAULTS: readonly unknown[] = [
  'ERR_INVALID_ARG_TYPE',
  'ERR_INVALID_ARG_VALUE',
  'ERR_OUT_OF_RANGE',
]

/**
 * How long a call waits for another writer. Longer than any healthy write transaction, and short
 * enough that a client gets its 503 before it times out.
 */
export const BUSY_MS_MAX = 5000

/** Writers hold the lock for a commit or two, so a retry is cheap and soon succeeds. */
const BACKOFF_MS_MIN = 1
const BACKOFF_MS_MAX = 25

/** Advice for an operator about errors that every call meets, by primary result code. */
const ADVICE: ReadonlyMap<number | undefined, string> = new Map([
  [BUSY, 'find the process that keeps a write transaction on this file open'],
  [READ_ONLY, 'let this process write to the file and to its folder'],
  [DISK_IO, 'check the disk that the file is on'],
  [CORRUPT, 'restore the file from a backup: it is damaged'],
  [FULL, 'make room on the disk that the file is on'],
  [CANNOT_OPEN, 'check that the file and its folder are there, and that this process may use them'],
])

/** Wraps every error of the store. Messages of SQLite name tables and columns, never values. */
export function storeFailed(
  operation: string,
  cause: unknown,
  failure: StoreFailure = isRowFault(cause) ? 'rejected' : 'unavailable',
): StoreFailedError {
  if (cause instanceof StoreFailedError) return cause
  const advice = ADVICE.get(primaryCodeOf(cause))
  return new StoreFailedError({ store: 'sqlite', operation, failure, cause, advice })
}

/**
 * Retries while another connection holds the lock. Waits on a timer, because SQLite's busy timeout
 * would block the event loop and with it every request of this process. Uses the system clock,
 * because the clock of a test may stand still.
 */
export async function whileBusy<Result>(attempt: () => Result): Promise<Result> {
  const giveUpAtMs = systemClock.monotonicMs() + BUSY_MS_MAX
  for (;;) {
    try {
      return attempt()
    } catch (error) {
      if (!isBusy(error) || systemClock.monotonicMs() >= giveUpAtMs) throw error
    }
    await sleep(systemClock, backoffMs())
  }
}

/** The blocking `whileBusy` for start-up, because the factory cannot be asynchronous. */
export function blockWhileBusy<Result>(attempt: () => Result): Result {
  const giveUpAtMs = systemClock.monotonicMs() + BUSY_MS_MAX
  const never = new Int32Array(new SharedArrayBuffer(4))
  for (;;) {
    try {
      return attempt()
    } catch (error) {
      if (!isBusy(error) || systemClock.monotonicMs() >= giveUpAtMs) throw error
    }
    Atomics.wait(never, 0, 0, backoffMs())
  }
}

/** The path leads to no database: a mistake of the caller, not a failure of the database. */
export function isUnusableFile(error: unknown): boolean {
  const code = primaryCodeOf(error)
  return code === CANNOT_OPEN || code === NOT_A_DATABASE
}

/** SQLite reports this error with its generic code only, so the message decides. */
export function isNoTransaction(error: unknown): boolean {
  return error instanceof Error && error.message.includes('no transaction is active')
}

export function isBusy(error: unknown): boolean {
  return primaryCodeOf(error) === BUSY
}

function isRowFault(error: unknown): boolean {
  if (error instanceof ValueFault || ROW_FAULTS.includes(primaryCodeOf(error))) return true
  return error instanceof Error && 'code' in error && VALUE_FAULTS.includes(error.code)
}

function primaryCodeOf(error: unknown): number | undefined {
  if (!(error instanceof Error && 'errcode' in error)) return undefined
  return typeof error.errcode === 'number' ? error.errcode & 0xff : undefined
}

/** Random, so that waiting processes do not retry at the same moments. */
function backoffMs(): number {
  return BACKOFF_MS_MIN + Math.random() * (BACKOFF_MS_MAX - BACKOFF_MS_MIN)
}
