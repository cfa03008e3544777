import type { Clock } from '../../core/clock.ts'
import type { Driver, Session, Value } from './client.ts'

/** How often the statement of a migration is looked at, and how long a short statement may take. */
const LOOK_MS = 5_000
const ANSWER_MS = 10_000

/** Looks in a row without an answer until the network counts as silent. */
const FAILURES_MAX = 6

const BACKEND = 'SELECT pg_backend_pid()'

/** `since` tells one state from the same state later. */
const ACTIVITY = `SELECT state, state_change::text FROM pg_catalog.pg_stat_activity
  WHERE pid = $1::int`

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
    let cancel = this.#after(ANSWER_MS, limit, `it did not begin within ${ANSWER_MS} ms`)
    const watched = async (session: Session) => {
      const [row] = await session.query(BACKEND, [])
      cancel()
      // Without a second connection nothing can be looked up.
      if (this.#driver.connectionsMax > 1) cancel = this.#watch(row?.[0] as number, limit)
      return body(session)
    }
    try {
      return await this.#driver.transact(watched, opening, limit.signal)
    } finally {
      cancel()
    }
  }

  #after(ms: number, limit: AbortController, reason: string): () => void {
    return this.#clock.after(ms, () => limit.abort(new Error(reason)))
  }

  /** Looks again and again until it is cancelled, or has seen that nothing happens any more. */
  #watch(backend: number, limit: AbortController): () => void {
    let isOver = false
    let failures = 0
    let seen = ''
    let cancel = () => {}
    const look = async () => {
      try {
        const [row] = await this.query(ACTIVITY, [backend])
        failures = 0
        const isAtWork = row !== undefined && (row[0] === 'active' || row[0] === null)
        const now = isAtWork ? '' : String(row)
        if (now !== '' && now === seen) limit.abort(new Error(LOST))
        seen = now
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

const LOST = 'the answer of a statement was lost, so the migration was given up: migrate again'
const UNREACHABLE =
  'the database could not be reached, so the migration was given up: migrate again'
