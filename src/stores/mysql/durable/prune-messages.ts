/** Removes messages that ended long ago, and counters of partitions that are empty and idle. */
import { ROWS_MAX, type Calls } from '../calls.ts'
import type { Row } from '../client.ts'
import { readCommitted, transact, type Session } from '../driver/driver.ts'
import type { SqlContext, Tables } from '../sql.ts'
import { laneOf, toMessage } from './message-columns.ts'
import { deleteMessagesSql, lockEndedSql } from './message-sql.ts'
import {
  deleteLanesSql,
  emptyLanesSql,
  isIdleSql,
  lanesAfterSql,
  lockLanesSql,
  type Lanes,
} from './partition-sql.ts'

/**
 * Counters whose messages were removed earlier are found by a tour through the table: so many
 * pieces in each call, and more while there are counters to remove.
 */
const TOUR_PIECES = 5
const TOUR_PIECES_MAX = 50

interface PruneRequest {
  readonly limit: number
  readonly olderThanMs: number
}

/** A partition of a topic. */
interface Lane {
  readonly topic: string
  readonly lane: string
}

const FIRST: Lane = { topic: '', lane: '' }

export class Pruning {
  readonly #calls: Calls
  readonly #current: () => SqlContext
  /** Last counter that the tour has read. */
  #at = FIRST

  constructor(calls: Calls, current: () => SqlContext) {
    this.#calls = calls
    this.#current = current
  }

  /** Works in pieces that are committed one by one. Skips rows that other calls have locked. */
  async prune(request: PruneRequest, signal?: AbortSignal): Promise<number> {
    let pruned = 0
    for (const state of ['done', 'dropped'] as const) {
      for (;;) {
        const limit = Math.min(ROWS_MAX, request.limit - pruned)
        if (limit <= 0) return pruned
        const piece = { ...request, state, limit }
        const count = await this.#make((session) => this.#pruneMessages(session, piece), signal)
        pruned += count
        if (count < limit) break
      }
    }
    await this.#tour(request, signal)
    return pruned
  }

  #make<Result>(run: (session: Session) => Promise<Result>, signal: AbortSignal | undefined) {
    return this.#calls.make('prune messages', run, signal)
  }

  async #pruneMessages(
    session: Session,
    piece: PruneRequest & { readonly state: 'done' | 'dropped' },
  ): Promise<number> {
    const ended = await transact(session, async () => {
      const { tables, now } = this.#current()
      const rows = await session.rows(lockEndedSql(tables, now, piece))
      const messages = rows.map((row) => toMessage(['id', 'topic', 'partition'], row))
      const ids = messages.map(({ id }) => id).toSorted()
      if (ids.length > 0) await session.run(deleteMessagesSql(tables, ids))
      return messages
    })
    const lanes = ended
      .filter(({ partition }) => partition !== undefined)
      .map(({ topic, partition }) => ({ topic, lane: laneOf(partition) }))
    await this.#removeIdle(session, lanes, piece)
    return ended.length
  }

  /**
   * No number is lost with a counter: when a message is added to the partition later, or an
   * operator returns one to it, the counter is created again.
   */
  async #removeIdle(
    session: Session,
    of: readonly Lane[],
    { olderThanMs }: PruneRequest,
  ): Promise<number> {
    const context = this.#current()
    const isIdle = isIdleSql(context.now, olderThanMs)
    let removed = 0
    for (const topic of new Set(of.map((one) => one.topic))) {
      const own = of.flatMap((one) => (one.topic === topic ? [one.lane] : []))
      const lanes = [...new Set(own)]
      const empty = { topic, lanes, isIdle, toSql: deleteLanesSql }
      removed += await withEmptyLanes(session, context, empty)
    }
    return removed
  }

  async #tour(request: PruneRequest, signal: AbortSignal | undefined): Promise<void> {
    for (let pieces = 1; pieces <= TOUR_PIECES_MAX; pieces++) {
      const removed = await this.#make((session) => this.#tourPiece(session, request), signal)
      if (this.#at === FIRST || (removed === 0 && pieces >= TOUR_PIECES)) return
    }
  }

  async #tourPiece(session: Session, request: PruneRequest): Promise<number> {
    const { tables, now } = this.#current()
    const isIdle = isIdleSql(now, request.olderThanMs)
    const sql = lanesAfterSql(tables, { ...this.#at, rows: ROWS_MAX, isIdle })
    const rows = (await readCommitted(session, sql)).toSorted(byKey).slice(0, ROWS_MAX)
    const found = rows.map(([topic, lane, isEmpty]) => {
      return { topic: textOf(topic), lane: textOf(lane), isEmpty: Number(isEmpty) === 1 }
    })
    const removed = await this.#removeIdle(
      session,
      found.filter(({ isEmpty }) => isEmpty),
      request,
    )
    this.#at = found.length < ROWS_MAX ? FIRST : found.at(-1)!
    return removed
  }
}

/** Hexadecimal digits sort like the bytes that they encode. */
function byKey([topic, lane]: Row, [otherTopic, otherLane]: Row): number {
  const [one, other] = topic === otherTopic ? [lane, otherLane] : [topic, otherTopic]
  return String(one) < String(other) ? -1 : 1
}

const textOf = (hex: unknown) => Buffer.from(String(hex), 'hex').toString('utf8')

export interface EmptyLanes extends Lanes {
  /** Additional condition, as SQL. */
  readonly isIdle?: string | undefined
  readonly toSql: (tables: Tables, empty: Lanes) => string
}

/**
 * Runs `toSql` on the empty ones of these lanes, under locks of their counters. A transaction that
 * adds a message has that lock until it commits, so an empty lane stays empty. A locked counter is
 * skipped, because its lane is in use.
 */
export function withEmptyLanes(
  session: Session,
  { tables }: SqlContext,
  { topic, lanes, isIdle, toSql }: EmptyLanes,
): Promise<number> {
  return transact(session, async () => {
    const locked = toLanes(await session.rows(lockLanesSql(tables, { topic, lanes })))
    if (locked.length === 0) return 0
    const sql = emptyLanesSql(tables, { topic, lanes: locked, isIdle })
    const empty = toLanes(await session.rows(sql))
    if (empty.length > 0) await session.run(toSql(tables, { topic, lanes: empty }))
    return empty.length
  })
}

function toLanes(rows: readonly Row[]): string[] {
  return rows.map(([lane]) => Buffer.from(String(lane), 'hex').toString('utf8'))
}
