/** How relays take messages: a look that locks nothing, a choice, and a transaction that takes. */
import type { HeldMessage, MessageClaim } from '../../core/durable-store.ts'
import type { Calls } from './calls.ts'
import { readCommitted, transact, type Session } from './driver.ts'
import { FREE, LANE, lookSql, OWN, type LookAt } from './look-sql.ts'
import { MESSAGE_ALL, NO_PARTITION, toHeld, toMessage, type MessageRow } from './message-columns.ts'
import { headsSql, heldSql, holdSql, lockDueSql, lockFreeSql } from './message-sql.ts'
import { MessageTurns } from './message-turns.ts'
import { withEmptyLanes } from './empty-lanes.ts'
import { closeLanesSql } from './partition-sql.ts'
import { tenantKeys } from './record-turns.ts'
import { byBytes, byDueTime, isDue, isFree, toSeen, type Seen } from './seen-messages.ts'
import type { Inside } from './settlement.ts'
import type { Asked, TopicSeen, TopicTurn } from './topic-turn.ts'

/** Lanes that one look goes through, and looks that one claim takes until it has something. */
const LANES_MAX = 500
const LOOKS_MAX = 8

/** More than a relay asks for at once. */
const MESSAGES_MAX = 1000

/** As many empty lanes are left open: one in constant use must not be closed each time. */
const EMPTY_LANES = 20

/** Rows that are looked at beyond the limit where tenants are left out. */
const LEFT_OUT_ROWS = 64

/** A claim as it is carried out: each topic once, with the most that it may have. */
interface Claim {
  readonly request: MessageClaim
  readonly topics: readonly { readonly topic: string; readonly max: number }[]
  readonly asked: Asked
}

/** Takes messages for relays, and remembers where it has looked. */
export class MessageClaims {
  readonly #calls: Calls
  readonly #inside: () => Inside
  readonly #turns = new MessageTurns()
  /** By topic, the lane that was looked at last, where there were more after it. */
  readonly #cursors = new Map<string, string>()

  constructor(calls: Calls, inside: () => Inside) {
    this.#calls = calls
    this.#inside = inside
  }

  async claim(request: MessageClaim, signal?: AbortSignal): Promise<HeldMessage[]> {
    const limit = Math.min(request.limit, MESSAGES_MAX)
    const topics = topicsOf(request).filter(({ max }) => max > 0)
    if (limit < 1 || topics.length === 0) return []
    const claim = { request, topics, asked: { limit, without: tenantKeys(request.withoutTenants) } }
    const tour = new Tour(
      topics.map(({ topic }) => topic),
      this.#cursors,
    )
    // Where a look has found nothing in its lanes, it goes on with those after them.
    for (let looks = 1; looks <= LOOKS_MAX; looks++) {
      const { taken, isLate } = await this.#calls.make(
        'claim messages',
        (session) => this.#lookAndTake(session, claim, tour),
        signal,
      )
      if (taken.length > 0 || (tour.isOver && !isLate)) return taken
    }
    return []
  }

  async #lookAndTake(session: Session, claim: Claim, tour: Tour): Promise<Taken> {
    const { request, asked } = claim
    const inside = this.#inside()
    const turns = this.#turns.begin(claim.topics)
    const leaps = this.#turns.firstLeaps(turns, asked)
    const topics = claim.topics.map(({ topic }) => {
      return { topic, after: this.#cursors.get(topic) ?? NO_PARTITION }
    })
    const look: LookAt = {
      token: request.token,
      topics,
      freeMax: asked.limit + 1 + (asked.without.size > 0 ? LEFT_OUT_ROWS : 0),
      lanesMax: LANES_MAX,
      withTenants: asked.without.size > 0,
      leaps: leaps.map(({ leap }) => leap),
    }
    const sql = lookSql(inside.tables, inside.now, look)
    const seen = (await readCommitted(session, sql)).map(toSeen)
    const own = seen.filter(({ origin }) => origin === OWN)
    if (own.length > 0) {
      return { taken: await readHeld(session, inside, request.token, own), isLate: false }
    }
    for (const [n, turn] of turns.entries()) turn.see(seenOf(seen, n, look))
    this.#noteLanes(look, seen, tour)
    await closeEmpty(session, inside, { topics: topics.map(({ topic }) => topic), seen })
    const of = { turns, asked, leaps, leapt: seen }
    await this.#turns.choose(session, inside, of)
    const picks = turns.map((turn) => picksOf(turn, asked))
    if (turns.every(({ chosen }) => chosen.length === 0)) return { taken: [], isLate: false }
    const taken = await transact(session, () => take(session, inside, { request, picks }))
    return { taken, isLate: taken.length === 0 }
  }

  /** How far the look has come in the lanes of each topic. */
  #noteLanes({ topics }: LookAt, seen: readonly Seen[], tour: Tour): void {
    for (const [n, { topic }] of topics.entries()) {
      const lanes = seen.flatMap((one) =>
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

/** What the plain look has seen of the topic with this number. */
function seenOf(seen: readonly Seen[], n: number, look: LookAt): TopicSeen {
  const ofTopic = seen.filter(({ topic }) => topic === n)
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

/** What is taken of one topic: by their ids, and as many of the longest due. */
interface Picks {
  readonly topic: string
  readonly first: number
  readonly ids: readonly string[]
}

/**
 * Others who claim have seen the same messages. So of those that are the longest due of all, not
 * the ones that were seen are taken, but as many: see `lockFreeSql`. That may be others than those
 * that were seen, so it is not done where tenants are left out.
 */
function picksOf(turn: TopicTurn, asked: Asked): Picks {
  const { topic, chosen } = turn
  const ids = new Set(chosen.map(({ id }) => id))
  const longest = turn.due(asked).filter(isFree).toSorted(byDueTime)
  const others = longest.findIndex(({ id }) => !ids.has(id))
  const first = asked.without.size > 0 ? 0 : others === -1 ? longest.length : others
  const scanned = new Set(longest.slice(0, first).map(({ id }) => id))
  return { topic, first, ids: [...ids].filter((id) => !scanned.has(id)) }
}

interface Taken {
  readonly taken: HeldMessage[]
  /** There were some, and others were faster with all of them: there may be more. */
  readonly isLate: boolean
}

/** How far one claim has come in the lanes of its topics, which it may begin in the middle of. */
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

  /** All lanes were looked at. */
  get isOver(): boolean {
    return this.#left.size === 0
  }

  /** `last`: the lane that a look came to; `undefined` where there was none after it. */
  note(topic: string, last: string | undefined): void {
    const tour = this.#left.get(topic)
    if (tour === undefined) return
    const isPastStart =
      last === undefined || (tour.start !== NO_PARTITION && byBytes(last, tour.start) >= 0)
    if (tour.isRound && isPastStart) this.#left.delete(topic)
    if (last === undefined) tour.isRound = true
  }
}

/** A repeated claim: what it had taken the first time. */
async function readHeld(
  session: Session,
  { tables }: Inside,
  token: string,
  own: readonly Seen[],
): Promise<HeldMessage[]> {
  const ids = own.flatMap(({ id }) => id ?? [])
  const rows = await readCommitted(session, heldSql(tables, token, ids))
  return rows.map((row) => toHeld(toMessage(MESSAGE_ALL, row)))
}

/**
 * First by the index, then by ids: a claim that holds messages by their ids waits only for claims
 * that have looked at them by the index after that. So no two wait for each other.
 */
async function take(
  session: Session,
  { tables, now }: Inside,
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

/** Looks again, under their locks, whether those of partitions are the heads of them. */
async function lockByIds(
  session: Session,
  { tables, now }: Inside,
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

/** Lanes with nothing in them, so that the next look has fewer to go through. */
async function closeEmpty(
  session: Session,
  inside: Inside,
  { topics, seen }: { readonly topics: readonly string[]; readonly seen: readonly Seen[] },
): Promise<void> {
  for (const [n, topic] of topics.entries()) {
    const lanes = seen
      .filter((one) => one.origin === LANE && one.topic === n && one.id === undefined)
      .map(({ lane }) => lane)
    if (lanes.length <= EMPTY_LANES) continue
    await withEmptyLanes(session, inside, { topic, lanes, toSql: closeLanesSql })
  }
}
