import { sleep, systemClock } from '../../core/clock.ts'
import { StoreFailedError, type StoreFailure } from '../../core/errors.ts'

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

/** What one row can be at fault for. Anything else, but for values, is the database's trouble. */
const ROW_FAULTS: readonly unknown[] = [TOO_BIG, CONSTRAINT, MISMATCH]

/**
 * What node:sqlite throws for a value that no column can hold, before SQLite sees it, and for one
 * that no JavaScript number can hold, where it reads a row.
 */
const VALUE_FAULTS: readonly unknown[] = [
  'ERR_INVALID_ARG_TYPE',
  'ERR_INVALID_ARG_VALUE',
  'ERR_OUT_OF_RANGE',
]

/**
 * How long another writer may keep us waiting. Longer than any healthy write transaction, and
 * short enough for a client to get its 503 before it gives up.
 */
export const BUSY_MS_MAX = 5000

/** Writers hold the lock for a commit or two, so asking again is cheap and soon successful. */
const BACKOFF_MS_MIN = 1
const BACKOFF_MS_MAX = 25

/** What an operator can do about errors that every call meets, by primary result code. */
const ADVICE: ReadonlyMap<number | undefined, string> = new Map([
  [BUSY, 'find the process that keeps a write transaction on this file open'],
  [READ_ONLY, 'let this process write to the file and to its folder'],
  [DISK_IO, 'check the disk that the file is on'],
  [CORRUPT, 'restore the file from a backup: it is damaged'],
  [FULL, 'make room on the disk that the file is on'],
  [CANNOT_OPEN, 'check that the file and its folder are there, and that this process may use them'],
])

/** The one wrapper of errors. Messages of SQLite name tables and columns, never values. */
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
 * Tries until no other connection is in the way. Waits on a timer: SQLite's own busy timeout
 * would block the event loop, and with it every request of this process. The system's clock,
 * because a test's clock stands still.
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

/** The same for start-up, where nothing else runs yet and the factory cannot be asynchronous. */
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

/** The path leads to no database: the caller's mistake, not the database's trouble. */
export function isUnusableFile(error: unknown): boolean {
  const code = primaryCodeOf(error)
  return code === CANNOT_OPEN || code === NOT_A_DATABASE
}

/** The one error that SQLite tells apart by its words alone. */
export function isNoTransaction(error: unknown): boolean {
  return error instanceof Error && error.message.includes('no transaction is active')
}

export function isBusy(error: unknown): boolean {
  return primaryCodeOf(error) === BUSY
}

function isRowFault(error: unknown): boolean {
  if (ROW_FAULTS.includes(primaryCodeOf(error))) return true
  return error instanceof Error && 'code' in error && VALUE_FAULTS.includes(error.code)
}

function primaryCodeOf(error: unknown): number | undefined {
  if (!(error instanceof Error && 'errcode' in error)) return undefined
  return typeof error.errcode === 'number' ? error.errcode & 0xff : undefined
}

/** Random, so that waiting processes do not keep meeting each other. */
function backoffMs(): number {
  return BACKOFF_MS_MIN + Math.random() * (BACKOFF_MS_MAX - BACKOFF_MS_MIN)
}
