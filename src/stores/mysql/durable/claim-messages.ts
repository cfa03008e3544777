/**
 * Claims messages for relays: a read without locks, a choice, and a transaction that takes the
 * chosen messages.
 *
 * Tests: test/stores/mysql/durable/outbox.server.test.ts, test/stores/mysql/turns/.
 */
import type { HeldMessage, MessageClaim } from '../../../core/store/durable-store.ts'
import type { Calls } from '../calls.ts'
import { readCommitted, transact, type Session } from '../driver/driver.ts'
import type { SqlContext } from '../sql.ts'
import { MessageTurns, type TopicLookResult, type TopicTurn } from '../turns/messages.ts'
import { tenantKeys, type TurnQuery } from '../turns/records.ts'
import { FREE, LANE, lookSql, OWN, type LookQuery } from '../turns/sql.ts'
import {
  byBytes,
  byDueTime,
  isDue,
  isFree,
  MESSAGE_ALL,
  NO_PARTITION,
  toHeld,
  toLookRow,
  toMessage,
  type LookRow,
  type MessageRow,
} from './message-columns.ts'
import { headsSql, heldSql, holdSql, lockDueSql, lockFreeSql } from './message-sql.ts'
import { closeLanesSql } from './partition-sql.ts'
import { withEmptyLanes } from './prune-messages.ts'

/** Lanes that one read covers, and reads of one claim until it has found a message. */
const LANES_MAX = 500
const LOOKS_MAX = 8

/** Messages of one claim. Relays request fewer. */
const MESSAGES_MAX = 1000

/** So many empty lanes stay open, so that a lane in constant use is not closed each time. */
const EMPTY_LANES = 20

/** Additional rows that are read if tenants are left out. */
const LEFT_OUT_ROWS = 64

/** A normalised claim: each topic once, with the number of messages that it may take. */
interface Claim {
  readonly request: MessageClaim
  readonly topics: readonly { readonly topic: string; readonly max: number }[]
  readonly query: TurnQuery
}

/** Takes messages for relays, and remembers up to where it has read the lanes. */
export class MessageClaims {
  readonly #calls: Calls
  readonly #current: () => SqlContext
  readonly #turns = new MessageTurns()
  /** By topic, the lane that was read last, if there were more lanes after it. */
  readonly #cursors = new Map<string, string>()

  constructor(calls: Calls, current: () => SqlContext) {
    this.#calls = calls
    this.#current = current
  }

  async claim(request: MessageClaim, signal?: AbortSignal): Promise<HeldMessage[]> {
    const limit = Math.min(request.limit, MESSAGES_MAX)
    const topics = topicsOf(request).filter(({ max }) => max > 0)
    if (limit < 1 || topics.length === 0) return []
    const claim = { request, topics, query: { limit, without: tenantKeys(request.withoutTenants) } }
    const tour = new Tour(
      topics.map(({ topic }) => topic),
      this.#cursors,
    )
    // If a read has found no message in its lanes, the next one continues with the lanes after
    // them.
    for (let looks = 1; looks <= LOOKS_MAX; looks++) {
      const { messages, isLate } = await this.#calls.make(
        'claim messages',
        (session) => this.#lookAndTake(session, claim, tour),
        signal,
      )
      if (messages.length > 0 || (tour.isOver && !isLate)) return messages
    }
    return []
  }

  async #lookAndTake(session: Session, claim: Claim, tour: Tour): Promise<ClaimResult> {
    const { request, query } = claim
    const context = this.#current()
    const turns = this.#turns.begin(claim.topics)
    const leaps = this.#turns.firstLeaps(turns, query)
    const topics = claim.topics.map(({ topic }) => {
      return { topic, after: this.#cursors.get(topic) ?? NO_PARTITION }
    })
    const look: LookQuery = {
      token: request.token,
      topics,
      freeMax: query.limit + 1 + (query.without.size > 0 ? LEFT_OUT_ROWS : 0),
      lanesMax: LANES_MAX,
      withTenants: query.without.size > 0,
      leaps: leaps.map(({ leap }) => leap),
    }
    const sql = lookSql(context.tables, context.now, look)
    const rows = (await readCommitted(session, sql)).map(toLookRow)
    const own = rows.filter(({ origin }) => origin === OWN)
    if (own.length > 0) {
      return { messages: await readHeld(session, context, request.token, own), isLate: false }
    }
    for (const [n, turn] of turns.entries()) turn.noteLook(topicLook(rows, n, look))
    this.#noteLanes(look, rows, tour)
    await closeEmpty(session, context, { topics: topics.map(({ topic }) => topic), rows })
    await this.#turns.choose(session, context, { turns, query, leaps, rows })
    const picks = turns.map((turn) => picksOf(turn, query))
    if (turns.every(({ chosen }) => chosen.length === 0)) return { messages: [], isLate: false }
    const messages = await transact(session, () => take(session, context, { request, picks }))
    return { messages, isLate: messages.length === 0 }
  }

  /** Notes the last lane of each topic that the read has covered. */
  #noteLanes({ topics }: LookQuery, rows: readonly LookRow[], tour: Tour): void {
    for (const [n, { topic }] of topics.entries()) {
      const lanes = rows.flatMap((one) =>
        one.origin === LANE && one.topic === n ? [one.lane] : [],
      )
      const last = lanes.length === LANES_MAX ? lanes.toSorted(byBytes).at(-1) : undefined
      tour.note(topic, last)
      if (last === undefined) this.#cursors.delete(topic)
      else this.#cursors.set(topic, last)
    }
  }
}

function topicsOf({ topics, limits, limit }: MessageClaim) {
  return [...new Set(topics)].map((topic) => {
    return { topic, max: limits?.[topics.indexOf(topic)] ?? limit }
  })
}

/** Result of the look for the topic with this index. */
function topicLook(rows: readonly LookRow[], n: number, look: LookQuery): TopicLookResult {
  const ofTopic = rows.filter(({ topic }) => topic === n)
  const free = ofTopic.filter(({ origin }) => origin === FREE).filter(isDue)
  const heads = ofTopic.filter(({ origin }) => origin === LANE)
  const isFromFirst = look.topics[n]?.after === NO_PARTITION
  return {
    free,
    heads,
    isAllFree: free.length < look.freeMax,
    hasTenants: look.withTenants,
    isAllHeads: isFromFirst && heads.length < look.lanesMax,
  }
}

/** Messages to take from one topic: `first` of the longest due ones, and those with these ids. */
interface Picks {
  readonly topic: string
  readonly first: number
  readonly ids: readonly string[]
}

/**
 * Concurrent claims have read the same messages. So the longest due messages are not taken by their
 * ids: the claim takes as many of the longest due ones that are not locked, see `lockFreeSql`.
 * Those may be other messages than the read ones, so this is not done if tenants are left out.
 */
function picksOf(turn: TopicTurn, query: TurnQuery): Picks {
  const { topic, chosen } = turn
  const ids = new Set(chosen.map(({ id }) => id))
  const longest = turn.due(query).filter(isFree).toSorted(byDueTime)
  const others = longest.findIndex(({ id }) => !ids.has(id))
  const first = query.without.size > 0 ? 0 : others === -1 ? longest.length : others
  const scanned = new Set(longest.slice(0, first).map(({ id }) => id))
  return { topic, first, ids: [...ids].filter((id) => !scanned.has(id)) }
}

interface ClaimResult {
  readonly messages: HeldMessage[]
  /** Other claims have taken all chosen messages first. There may be more messages. */
  readonly isLate: boolean
}

/** Progress of one claim through the lanes of its topics. It may start at any lane. */
class Tour {
  readonly #left: Map<string, { readonly start: string; isRound: boolean }>

  constructor(topics: readonly string[], cursors: ReadonlyMap<string, string>) {
    this.#left = new Map(
      topics.map((topic) => {
        const start = cursors.get(topic) ?? NO_PARTITION
        return [topic, { start, isRound: start === NO_PARTITION }]
      }),
    )
  }

  /** All lanes were read. */
  get isOver(): boolean {
    return this.#left.size === 0
  }

  /** `last` is the last lane of a read, or `undefined` if the read reached the end. */
  note(topic: string, last: string | undefined): void {
    const tour = this.#left.get(topic)
    if (tour === undefined) return
    const isPastStart =
      last === undefined || (tour.start !== NO_PARTITION && byBytes(last, tour.start) >= 0)
    if (tour.isRound && isPastStart) this.#left.delete(topic)
    if (last === undefined) tour.isRound = true
  }
}

/** For a repeated claim: the messages that it took the first time. */
async function readHeld(
  session: Session,
  { tables }: SqlContext,
  token: string,
  own: readonly LookRow[],
): Promise<HeldMessage[]> {
  const ids = own.flatMap(({ id }) => id ?? [])
  const rows = await readCommitted(session, heldSql(tables, token, ids))
  return rows.map((row) => toHeld(toMessage(MESSAGE_ALL, row)))
}

/**
 * Locks by the index first, and then by ids. A claim that has locked messages by their ids waits
 * only for claims that have read them by the index after that, so no two claims wait for each
 * other.
 */
async function take(
  session: Session,
  { tables, now }: SqlContext,
  { request, picks }: { readonly request: MessageClaim; readonly picks: readonly Picks[] },
): Promise<HeldMessage[]> {
  const found = new Map<string, MessageRow>()
  for (const { topic, first } of picks) {
    if (first === 0) continue
    const rows = await session.rows(lockFreeSql(tables, now, { topic, limit: first }))
    for (const row of rows.map((one) => toMessage(MESSAGE_ALL, one))) found.set(row.id, row)
  }
  const ids = picks.flatMap((one) => one.ids)
  for (const row of await lockByIds(session, { tables, now }, ids)) found.set(row.id, row)
  const taken = [...found.values()]
  if (taken.length === 0) return []
  const { token, leaseMs } = request
  const of = { ids: taken.map(({ id }) => id).toSorted(), token, leaseMs }
  await session.run(holdSql(tables, now, of))
  return taken.toSorted(byDueTime).map((row) => toHeld({ ...row, token, attempt: row.attempt + 1 }))
}

/** Checks again, under locks, that messages of partitions are the heads of their lanes. */
async function lockByIds(
  session: Session,
  { tables, now }: SqlContext,
  ids: readonly string[],
): Promise<MessageRow[]> {
  if (ids.length === 0) return []
  const rows = await session.rows(lockDueSql(tables, now, ids.toSorted()))
  const locked = rows.map((row) => toMessage(MESSAGE_ALL, row))
  const inLanes = locked.filter(({ partition }) => partition !== undefined)
  if (inLanes.length === 0) return locked
  const heads = await session.rows(
    headsSql(
      tables,
      inLanes.map(({ id }) => id),
    ),
  )
  const isHead = new Set(heads.map(([id]) => id))
  return locked.filter(({ id, partition }) => partition === undefined || isHead.has(id))
}

/** Closes empty lanes, so that the next read covers fewer of them. */
async function closeEmpty(
  session: Session,
  context: SqlContext,
  { topics, rows }: { readonly topics: readonly string[]; readonly rows: readonly LookRow[] },
): Promise<void> {
  for (const [n, topic] of topics.entries()) {
    const lanes = rows
      .filter((one) => one.origin === LANE && one.topic === n && one.id === undefined)
      .map(({ lane }) => lane)
    if (lanes.length <= EMPTY_LANES) continue
    await withEmptyLanes(session, context, { topic, lanes, toSql: closeLanesSql })
  }
}
