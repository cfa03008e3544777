/** The lock under which the tables are changed, and how long others wait for it. */
import { systemClock } from '../../core/clock.ts'
import type { Session } from './driver.ts'
import { ROLLBACK } from './sql.ts'

/** How long a change of the tables may take, and so how long others wait for it: six hours. */
const CHANGE_MS = 6 * 60 * 60_000

/**
 * A wait for the lock is short, so that the server answers and a network that went silent is told
 * from another process that is at work.
 */
const LOCK_SECONDS = 1
const LOCK_TRIES = CHANGE_MS / (LOCK_SECONDS * 1000)

/** Within this time all statements are answered that change no table. */
const ANSWER_MS = 60_000

/** Gives a migration up when the network has gone silent. */
export class MigrationLimit {
  readonly #givenUp = new AbortController()
  #cancel = () => {}

  constructor() {
    this.expectAnswer()
  }

  get signal(): AbortSignal {
    return this.#givenUp.signal
  }

  expectAnswer(): void {
    this.#within(ANSWER_MS)
  }

  /** The server may be at work for long, and says nothing meanwhile. */
  expectChange(): void {
    this.#within(CHANGE_MS)
  }

  end(): void {
    this.#cancel()
  }

  #within(ms: number): void {
    this.#cancel()
    const giveUp = () => this.#givenUp.abort(new Error(`no answer within ${ms} ms`))
    this.#cancel = systemClock.after(ms, giveUp, { background: true })
  }
}

export interface MigrationLock {
  /** The name of the lock, as SQL. */
  readonly name: string
  readonly limit: MigrationLimit
  /** Whether another process has done all that there is to do. */
  readonly isDone: () => Promise<boolean>
}

/**
 * Runs `change` once no other process changes the tables, unless all is done by then. A lock of the
 * server, not of a transaction: every statement that makes a table ends that.
 */
export async function withLock(
  session: Session,
  { name, limit, isDone }: MigrationLock,
  change: () => Promise<void>,
): Promise<void> {
  for (let tries = 1; !(await isLocked(session, name)); tries++) {
    limit.expectAnswer()
    // Under autocommit = 0 the answer would be as old as the first one.
    await session.run(ROLLBACK)
    if (await isDone()) return
    if (tries === LOCK_TRIES) throw new Error('another process has been migrating for six hours')
  }
  try {
    limit.expectChange()
    const [before] = await session.rows('SELECT @@SESSION.lock_wait_timeout')
    await change()
    limit.expectAnswer()
    await session.run(`SET SESSION lock_wait_timeout = ${Number(before?.[0])}`)
    await session.run(`DO RELEASE_LOCK(${name})`)
  } catch (error) {
    // The lock and the setting go with their connection.
    session.destroy()
    throw error
  }
}

async function isLocked(session: Session, name: string): Promise<boolean> {
  const [row] = await session.rows(`SELECT GET_LOCK(${name}, ${LOCK_SECONDS})`)
  // NULL where the server could not tell.
  if (row?.[0] === null) throw new Error('GET_LOCK has failed')
  return Number(row?.[0]) === 1
}
