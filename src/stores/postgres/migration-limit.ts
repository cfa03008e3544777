import type { Clock } from '../../core/clock.ts'
import type { Driver, Session, Value } from './client.ts'

/** How often the statement of a migration is looked at, and how long a short statement may take. */
const LOOK_MS = 5_000
const ANSWER_MS = 10_000

/** Looks in a row without an answer until the network counts as silent. */
const FAILURES_MAX = 6

/** Looks in a row at which a statement waits for a lock until it is given up: a minute. */
const LOCKED_MAX = 12

/**
 * How often a transaction that only holds a lock shows that its client is there. The statement
 * takes no snapshot: the build of an index would wait for the end of a transaction that has one.
 */
const ALIVE_MS = 20_000
export const ALIVE = `SET LOCAL oncekey.alive = 'yes'`

export const BACKEND = 'SELECT pg_backend_pid()'

/** `since` tells one state from the same state later. */
const ACTIVITY = `SELECT state, state_change::text FROM pg_catalog.pg_stat_activity
  WHERE pid = $1::int`

/** Behind a pooler it is not known which connection carries the statement. */
const STATEMENT = `SELECT coalesce(wait_event_type, '') FROM pg_catalog.pg_stat_activity
  WHERE query = $1::text AND state = 'active' AND pid <> pg_backend_pid()`

/** What one look says: why to give up, or nothing. */
type Judge = () => Promise<Error | undefined>

/** A statement has waited too long for the locks of others. */
export class LockedOut extends Error {}

/**
 * Limits a migration. Its statements may take hours, so not their time is limited, but silence: on
 * another connection it is looked up whether the database still works on the statement. Where it
 * does not, its answer was lost, and the connection is destroyed. Nothing is cancelled.
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

  /** A statement that only reads a few rows. */
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
      // Without a second connection nothing can be looked up.
      if (this.connectionsMax > 1) cancel = this.#watch(limit, this.#backend(row?.[0] as number))
      return body(session)
    }
    try {
      return await this.#driver.transact(watched, opening, limit.signal)
    } finally {
      cancel()
    }
  }

  /** A transaction that holds a lock while the body works on other connections. */
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
        cancel = this.#after(ANSWER_MS, limit, `it did not end within ${ANSWER_MS} ms`)
      }
    }
    try {
      return await this.#driver.transact(held, opening, limit.signal)
    } finally {
      cancel()
    }
  }

  /** A long statement by itself, on any connection. */
  async alone(sql: string): Promise<void> {
    const limit = new AbortController()
    // One connection may hold a lock, one carries the statement, and one looks.
    const cancel = this.connectionsMax > 2 ? this.#watch(limit, this.#statement(sql)) : () => {}
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
        // A connection that is lost is told of by the end of its transaction.
        session.script(ALIVE).catch(() => undefined)
        again()
      })
    }
    again()
    return () => cancel()
  }

  #backend(pid: number): Judge {
    let seen = ''
    return async () => {
      const [row] = await this.query(ACTIVITY, [pid])
      const isAtWork = row !== undefined && (row[0] === 'active' || row[0] === null)
      const now = isAtWork ? '' : String(row)
      const isLost = now !== '' && now === seen
      seen = now
      return isLost ? new Error(LOST) : undefined
    }
  }

  #statement(sql: string): Judge {
    let isGone = false
    let locked = 0
    return async () => {
      const [row] = await this.query(STATEMENT, [sql])
      locked = row?.[0] === 'Lock' ? locked + 1 : 0
      if (locked === LOCKED_MAX) return new LockedOut('it waited for a lock for a minute')
      const isLost = row === undefined && isGone
      isGone = row === undefined
      return isLost ? new Error(LOST) : undefined
    }
  }

  /** Looks again and again until it is cancelled, or there is a reason to give up. */
  #watch(limit: AbortController, judge: Judge): () => void {
    let isOver = false
    let failures = 0
    let cancel = () => {}
    const look = async () => {
      try {
        const reason = await judge()
        failures = 0
        if (reason !== undefined) limit.abort(reason)
      } catch {
        // Not reported: a migration whose own connection answers is not harmed.
        if (++failures === FAILURES_MAX) limit.abort(new Error(UNREACHABLE))
      }
      if (!isOver) again()
    }
    const again = () => {
      cancel = this.#clock.after(LOOK_MS, () => void look())
    }
    again()
    return () => {
      isOver = true
      cancel()
    }
  }
}

const NOT_BEGUN = `it did not begin within ${ANSWER_MS} ms`
const LOST = 'the answer of a statement was lost, so the migration was given up: migrate again'
const UNREACHABLE =
  'the database could not be reached, so the migration was given up: migrate again'
