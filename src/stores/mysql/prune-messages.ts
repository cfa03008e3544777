/** Removes messages that were over long ago, and the counters of partitions that are idle. */
import { ROWS_MAX, type Calls } from './calls.ts'
import type { Row } from './client.ts'
import { readCommitted, transact, type Session } from './driver.ts'
import { withEmptyLanes } from './empty-lanes.ts'
import { laneOf, toMessage } from './message-columns.ts'
import { deleteMessagesSql, lockEndedSql } from './message-sql.ts'
import { deleteLanesSql, isIdleSql, lanesAfterSql } from './partition-sql.ts'
import type { Inside } from './settlement.ts'

/**
 * Counters whose messages are gone already are looked for by a tour through the table: so many
 * pieces in each call, and more while there is something to remove.
 */
const TOUR_PIECES = 5
const TOUR_PIECES_MAX = 50

interface Pruned {
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
  readonly #inside: () => Inside
  /** Where the tour has come to. */
  #at = FIRST

  constructor(calls: Calls, inside: () => Inside) {
    this.#calls = calls
    this.#inside = inside
  }

  /** In pieces that are committed one by one. What others have locked is left. */
  async prune(request: Pruned, signal?: AbortSignal): Promise<number> {
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
    piece: Pruned & { readonly state: 'done' | 'dropped' },
  ): Promise<number> {
    const ended = await transact(session, async () => {
      const { tables, now } = this.#inside()
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
   * Nothing is lost with a counter: a message that is added to its partition later, or that an
   * operator brings back, makes another.
   */
  async #removeIdle(
    session: Session,
    of: readonly Lane[],
    { olderThanMs }: Pruned,
  ): Promise<number> {
    const inside = this.#inside()
    const isIdle = isIdleSql(inside.now, olderThanMs)
    let removed = 0
    for (const topic of new Set(of.map((one) => one.topic))) {
      const own = of.flatMap((one) => (one.topic === topic ? [one.lane] : []))
      const lanes = [...new Set(own)]
      const empty = { topic, lanes, isIdle, toSql: deleteLanesSql }
      removed += await withEmptyLanes(session, inside, empty)
    }
    return removed
  }

  async #tour(request: Pruned, signal: AbortSignal | undefined): Promise<void> {
    for (let pieces = 1; pieces <= TOUR_PIECES_MAX; pieces++) {
      const removed = await this.#make((session) => this.#goOn(session, request), signal)
      if (this.#at === FIRST || (removed === 0 && pieces >= TOUR_PIECES)) return
    }
  }

  async #goOn(session: Session, request: Pruned): Promise<number> {
    const { tables, now } = this.#inside()
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

/** Hexadecimal digits sort as the bytes do. */
function byKey([topic, lane]: Row, [otherTopic, otherLane]: Row): number {
  const [one, other] = topic === otherTopic ? [lane, otherLane] : [topic, otherTopic]
  return String(one) < String(other) ? -1 : 1
}

const textOf = (hex: unknown) => Buffer.from(String(hex), 'hex').toString('utf8')
