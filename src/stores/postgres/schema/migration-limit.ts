import type { Clock } from '../../../core/time/clock.ts'
import type { Driver, Session, Value } from '../driver/driver.ts'

/** The interval of checks on a statement, and the time limit of a short statement. */
const CHECK_MS = 5_000
const ANSWER_MS = 10_000

/** Consecutive checks that must fail before the database counts as unreachable. */
const FAILURES_MAX = 6

/** Consecutive checks that find a statement waiting for a lock before it fails: a minute. */
const LOCKED_MAX = 12

/**
 * How often a transaction that only holds a lock sends a statement, so that the server does not end
 * it as idle. The statement takes no snapshot, because an index build waits for every transaction
 * that has one.
 */
const ALIVE_MS = 20_000
export const ALIVE = `SET LOCAL oncekey.alive = 'yes'`

export const BACKEND = 'SELECT pg_backend_pid()'

/** `state_change` distinguishes a state from the same state at a later time. */
const ACTIVITY = `SELECT state, state_change::text FROM pg_catalog.pg_stat_activity
  WHERE pid = $1::int`

/** Finds a statement by its text: behind a pooler, its connection is not known. */
const STATEMENT = `SELECT coalesce(wait_event_type, '') FROM pg_catalog.pg_stat_activity
  WHERE query = $1::text AND state = 'active' AND pid <> pg_backend_pid()`

/** Returns why the migration must fail, or `undefined`. */
type Check = () => Promise<Error | undefined>

/** A statement has waited too long for a lock of another transaction. */
export class LockedOut extends Error {}

/**
 * Limits how long a migration waits for an answer. A statement may take hours, so it has no time
 * limit. Instead, another connection checks whether the database still runs it. If it does not, the
 * answer was lost, and the connection is destroyed. The database cancels nothing.
 */
export class MigrationLimit {
  readonly #driver: Driver
  readonly #clock: Clock

  constructor(driver: Driver, clock: Clock) {
    this.#driver = driver
    this.#clock = clock
  }

  get connectionsMax(): number {
    return this.#driver.connectionsMax
  }

  /** Runs a statement that only reads a few rows. */
  async query(sql: string, values: readonly Value[]): ReturnType<Driver['query']> {
    const limit = new AbortController()
    const cancel = this.#after(ANSWER_MS, limit, `no answer within ${ANSWER_MS} ms`)
    try {
      return await this.#driver.query(sql, values, limit.signal)
    } finally {
      cancel()
    }
  }

  async transact<Result>(
    body: (session: Session) => Promise<Result>,
    opening: string,
  ): Promise<Result> {
    const limit = new AbortController()
    let cancel = this.#after(ANSWER_MS, limit, NOT_BEGUN)
    const watched = async (session: Session) => {
      const [row] = await session.query(BACKEND, [])
      cancel()
      // A check needs a second connection.
      if (this.connectionsMax > 1)
        cancel = this.#watch(limit, this.#backendCheck(row?.[0] as number))
      return body(session)
    }
    try {
      return await this.#driver.transact(watched, opening, limit.signal)
    } finally {
      cancel()
    }
  }

  /** Runs a transaction that holds a lock while the body uses other connections. */
  async hold<Result>(
    body: (session: Session) => Promise<Result>,
    opening: string,
  ): Promise<Result> {
    const limit = new AbortController()
    let cancel = this.#after(ANSWER_MS, limit, NOT_BEGUN)
    const held = async (session: Session) => {
      cancel()
      cancel = this.#keepAlive(session)
      try {
        return await body(session)
      } finally {
        cancel()
        cancel = this.#after(ANSWER_MS, limit, `the transaction did not end within ${ANSWER_MS} ms`)
      }
    }
    try {
      return await this.#driver.transact(held, opening, limit.signal)
    } finally {
      cancel()
    }
  }

  /** Runs a long statement outside of a transaction, on any connection. */
  async alone(sql: string): Promise<void> {
    const limit = new AbortController()
    // One connection may hold a lock, one carries the statement, and one checks.
    const cancel =
      this.connectionsMax > 2 ? this.#watch(limit, this.#statementCheck(sql)) : () => {}
    try {
      await this.#driver.query(sql, [], limit.signal)
    } finally {
      cancel()
    }
  }

  #after(ms: number, limit: AbortController, reason: string): () => void {
    return this.#clock.after(ms, () => limit.abort(new Error(reason)))
  }

  #keepAlive(session: Session): () => void {
    let cancel = () => {}
    const again = () => {
      cancel = this.#clock.after(ALIVE_MS, () => {
        // If the connection is lost, the commit of the transaction reports it.
        session.script(ALIVE).catch(() => undefined)
        again()
      })
    }
    again()
    return () => cancel()
  }

  #backendCheck(pid: number): Check {
    let previous = ''
    return async () => {
      const [row] = await this.query(ACTIVITY, [pid])
      const isAtWork = row !== undefined && (row[0] === 'active' || row[0] === null)
      const now = isAtWork ? '' : String(row)
      const isLost = now !== '' && now === previous
      previous = now
      return isLost ? new Error(LOST) : undefined
    }
  }

  #statementCheck(sql: string): Check {
    let isGone = false
    let locked = 0
    return async () => {
      const [row] = await this.query(STATEMENT, [sql])
      locked = row?.[0] === 'Lock' ? locked + 1 : 0
      if (locked === LOCKED_MAX)
        return new LockedOut('the statement waited for a lock for a minute')
      const isLost = row === undefined && isGone
      isGone = row === undefined
      return isLost ? new Error(LOST) : undefined
    }
  }

  /** Repeats the check until it is cancelled, or returns an error. */
  #watch(limit: AbortController, check: Check): () => void {
    let isOver = false
    let failures = 0
    let cancel = () => {}
    const run = async () => {
      try {
        const reason = await check()
        failures = 0
        if (reason !== undefined) limit.abort(reason)
      } catch {
        // One failed check is ignored: the migration continues while its connection answers.
        if (++failures === FAILURES_MAX) limit.abort(new Error(UNREACHABLE))
      }
      if (!isOver) again()
    }
    const again = () => {
      cancel = this.#clock.after(CHECK_MS, () => void run())
    }
    again()
    return () => {
      isOver = true
      cancel()
    }
  }
}

const NOT_BEGUN = `the transaction did not begin within ${ANSWER_MS} ms`
const LOST = 'the answer to a statement was lost, so the migration stopped: migrate again'
const UNREACHABLE = 'the database could not be reached, so the migration stopped: migrate again'
