/**
 * Chooses messages for a claim in fair order: topics take turns, and within each of them its
 * tenants. See `walk.ts` for the words.
 *
 * Tests: test/stores/mysql/turns/turns.server.test.ts,
 * test/stores/mysql/turns/messages.server.test.ts.
 */
import { pickInTurns, rotateBehind } from '../../kit/turns.ts'
import { readCommitted, type Session } from '../driver/driver.ts'
import {
  byDueTime,
  isDue,
  NO_PARTITION,
  toLookRow,
  type DueMessage,
  type LookRow,
} from '../durable/message-columns.ts'
import type { SqlContext } from '../sql.ts'
import { LEAPS_MAX, ROUND_GROWTH, ROUNDS_MAX, type TurnQuery } from './records.ts'
import {
  FREE_LEAP,
  LANE,
  LANE_LEAP,
  leapLookSql,
  type MessageLeap,
  type TenantLanes,
} from './sql.ts'
import {
  cursorAfter,
  CursorMap,
  inWalkOrder,
  TurnMemory,
  TurnWalk,
  type WalkMemory,
} from './walk.ts'

/** Partitions of a tenant that are read when it has its turn, and tenants in one claim. */
const LANES_OF_TENANT = 8
const TENANTS_MAX = 64

export class MessageTurns {
  readonly #memory = new TurnMemory()
  /** By tenant and topic, the lane that was read last. */
  readonly #lanes = new CursorMap()
  /** More was due than the last call returned, so the next one leaps with its first statement. */
  #isBehind = false

  begin(topics: readonly { readonly topic: string; readonly max: number }[]): TopicTurn[] {
    return topics.map((one) => {
      const free = this.#memory.of(`free ${one.topic}`)
      return new TopicTurn(one, { free, lanes: this.#memory.of(`lanes ${one.topic}`) })
    })
  }

  /** Leaps to run in the same statement as the look. */
  firstLeaps(turns: readonly TopicTurn[], query: TurnQuery): TopicLeap[] {
    return this.#isBehind ? nextTopicLeaps(turns, query, 1) : []
  }

  /** Fills `chosen` of each turn from the look, or from further leaps if more is due than fits. */
  async choose(
    session: Session,
    context: SqlContext,
    of: {
      readonly turns: readonly TopicTurn[]
      readonly query: TurnQuery
      readonly leaps: readonly TopicLeap[]
      /** Rows of the look and of `leaps`. */
      readonly rows: readonly LookRow[]
    },
  ): Promise<void> {
    const { turns, query } = of
    const due = turns.map((turn) => ({ turn, messages: turn.due(query) }))
    const isForAll =
      due.every(({ turn, messages }) => turn.isKnown && messages.length <= turn.max) &&
      due.flatMap(({ messages }) => messages).length <= query.limit
    this.#isBehind = !isForAll
    if (isForAll) {
      for (const { turn, messages } of due) turn.chosen.push(...messages)
      return
    }
    noteTopicLeaps(of.leaps, of.rows)
    for (let round = of.leaps.length > 0 ? 2 : 1; round <= ROUNDS_MAX; round++) {
      const leaps = nextTopicLeaps(turns, query, round)
      if (leaps.length === 0) break
      const look = { leaps: leaps.map(({ leap }) => leap), tenants: [] }
      const rows = await readCommitted(session, leapLookSql(context.tables, context.now, look))
      noteTopicLeaps(leaps, rows.map(toLookRow))
    }
    await this.#lookAtLanes(session, context, { turns, query })
    this.#pick(turns, query)
  }

  /** Reads some partitions of each tenant that has its turn, unless the look has read all. */
  async #lookAtLanes(
    session: Session,
    { tables, now }: SqlContext,
    { turns, query }: { readonly turns: readonly TopicTurn[]; readonly query: TurnQuery },
  ): Promise<void> {
    const parted = turns.filter(({ hasAllHeads }) => !hasAllHeads)
    const most = Math.min(query.limit, Math.ceil(TENANTS_MAX / Math.max(1, parted.length)))
    const wanted = parted.flatMap((turn) => {
      const keys = turn.unreadTenants(query).slice(0, most)
      return keys.map((tenant) => ({ turn, tenant }))
    })
    if (wanted.length === 0) return
    const tenants = wanted.map(({ turn: { topic }, tenant }): TenantLanes => {
      const after = this.#lanes.get(`${tenant} ${topic}`) ?? NO_PARTITION
      return { topic, tenant, after, lanesMax: LANES_OF_TENANT }
    })
    const rows = await readCommitted(session, leapLookSql(tables, now, { leaps: [], tenants }))
    const heads = rows.map(toLookRow).filter(({ origin }) => origin === LANE)
    for (const [n, { turn, tenant }] of wanted.entries()) {
      turn.heads.set(
        tenant,
        heads.filter((one) => one.topic === n),
      )
    }
  }

  /** Picks messages in turns, and then the longest due of the others. */
  #pick(turns: readonly TopicTurn[], query: TurnQuery): void {
    const lanes = turns.map((turn) => {
      return { key: turn.topic, max: turn.max, turn, candidates: turn.candidates(query) }
    })
    const ordered = rotateBehind(lanes, ({ key }) => key, this.#memory.lastLane)
    const picks = pickInTurns(ordered, query.limit)
    this.#memory.lastLane = picks.at(-1)?.lane ?? this.#memory.lastLane
    for (const { key, turn, candidates } of lanes) {
      const own = picks.filter(({ lane }) => lane === key)
      turn.chosen.push(...own.map(({ candidate }) => candidate.message))
      this.#remember(turn, candidates, query)
    }
    fill(turns, query)
    for (const turn of turns) if (!turn.hasAllHeads) this.#rememberLanes(turn)
  }

  /** A tenant whose partitions were not read has not had its turn. */
  #remember(turn: TopicTurn, candidates: readonly Candidate[], query: TurnQuery): void {
    const { topic, free, lanes, chosen } = turn
    const left = candidates.filter(({ message }) => !chosen.includes(message))
    const isLeft = new Set([...left.map(({ key }) => key), ...turn.unreadTenants(query)])
    const stops = turn.reached.map((key) => ({ key, isLeft: isLeft.has(key) }))
    const cursor = cursorAfter(turn.cursor, stops)
    this.#memory.set(`free ${topic}`, free.rememberAt(cursor))
    const ofLanes = lanes.rememberAt(cursor)
    this.#memory.set(`lanes ${topic}`, turn.hasAllHeads ? { ...ofLanes, known: [] } : ofLanes)
  }

  /** Partitions of a tenant take turns as well. After the last one the first is next. */
  #rememberLanes({ topic, heads, chosen }: TopicTurn): void {
    const ids = new Set(chosen.map(({ id }) => id))
    for (const [tenant, rows] of heads) {
      const name = `${tenant} ${topic}`
      const stops = rows.map((one) => {
        return { key: one.lane, isLeft: isDue(one) && !ids.has(one.id) }
      })
      const isRound = rows.length < LANES_OF_TENANT && !stops.some(({ isLeft }) => isLeft)
      const before = this.#lanes.get(name)
      const cursor = isRound ? undefined : cursorAfter(before, stops)
      if (cursor === undefined) this.#lanes.delete(name)
      else if (cursor !== before) this.#lanes.set(name, cursor)
    }
  }
}

function fill(turns: readonly TopicTurn[], query: TurnQuery): void {
  const ids = new Set(turns.flatMap(({ chosen }) => chosen.map(({ id }) => id)))
  const rest = turns
    .flatMap((turn) => turn.due(query).map((message) => ({ turn, message })))
    .filter(({ message }) => !ids.has(message.id))
    .toSorted((one, other) => byDueTime(one.message, other.message))
  let left = query.limit - ids.size
  for (const { turn, message } of rest) {
    if (left === 0) return
    if (turn.chosen.length === turn.max) continue
    turn.chosen.push(message)
    left--
  }
}

/** Rows that the look has read of one topic. */
export interface TopicLookResult {
  readonly free: readonly DueMessage[]
  /** Heads of partitions, and rows of empty ones. Heads may not be due yet. */
  readonly heads: readonly LookRow[]
  /** `free` contains all due messages without a partition. */
  readonly isAllFree: boolean
  /** The tenants of `free` are known. */
  readonly hasTenants: boolean
  /** `heads` contains all open partitions. */
  readonly isAllHeads: boolean
}

export interface Candidate {
  readonly key: string
  readonly message: DueMessage
}

/** One topic in one claim: its tenants, and their due messages. */
export class TopicTurn {
  readonly topic: string
  readonly max: number
  readonly cursor: string | undefined
  /** Tenants with messages that have no partition, and tenants with partitions. */
  readonly free: TurnWalk<LookRow>
  readonly lanes: TurnWalk<LookRow>
  /** By tenant, the heads of its partitions that were read. */
  readonly heads = new Map<string, readonly LookRow[]>()
  readonly chosen: DueMessage[] = []
  /** The last claim found more partitions than the look reads. */
  readonly hasManyLanes: boolean
  #look: TopicLookResult | undefined

  constructor(
    { topic, max }: { readonly topic: string; readonly max: number },
    { free, lanes }: { readonly free: WalkMemory; readonly lanes: WalkMemory },
  ) {
    this.topic = topic
    this.max = max
    this.cursor = free.cursor
    this.free = new TurnWalk(free)
    this.lanes = new TurnWalk({ ...lanes, cursor: free.cursor })
    this.hasManyLanes = lanes.known.length > 0
  }

  /** If the look has read everything, no leaps are needed. */
  noteLook(look: TopicLookResult): void {
    this.#look = look
    if (look.isAllFree && look.hasTenants) this.free.noteAll(inKeyOrder(look.free))
    if (!look.isAllHeads) return
    this.lanes.noteAll(inKeyOrder(look.heads.filter(isDue)))
    for (const { key, entries } of this.lanes.stops) this.heads.set(key, entries)
  }

  get hasLook(): boolean {
    return this.#look !== undefined
  }

  get hasAllHeads(): boolean {
    return this.#look?.isAllHeads === true
  }

  /** Nothing else is due in this topic. */
  get isKnown(): boolean {
    return this.#look?.isAllFree === true && this.hasAllHeads
  }

  /** Due messages from the look and from the read of partitions of tenants. */
  due({ without }: TurnQuery): DueMessage[] {
    const { free = [], heads = [] } = this.#look ?? {}
    const all = [...free, ...heads, ...[...this.heads.values()].flat()]
    const byId = new Map(all.filter(isDue).map((one) => [one.id, one]))
    return [...byId.values()].filter(({ key }) => !without.has(key))
  }

  /** Tenants that were found, up to the point that both walks have reached. */
  get reached(): string[] {
    const found = [...this.free.stops, ...this.lanes.stops].map(({ key }) => key)
    return inWalkOrder([...new Set(found)], this.cursor).filter(
      (key) => this.free.reaches(key) && this.lanes.reaches(key),
    )
  }

  /** Tenants with partitions of which none was read, in the order of their turns. */
  unreadTenants({ without }: TurnQuery): string[] {
    if (this.hasAllHeads) return []
    const keys = this.lanes.stops.map(({ key }) => key)
    return keys.filter((key) => !this.heads.has(key) && !without.has(key))
  }

  /** The longest due message of each tenant, in the order of their turns. */
  candidates({ without }: TurnQuery): Candidate[] {
    const free = new Map(this.free.stops.map(({ key, entries }) => [key, entries]))
    return this.reached.flatMap((key) => {
      if (without.has(key)) return []
      const heads = this.heads.get(key) ?? []
      const own = [...(free.get(key) ?? []), ...heads.filter((one) => !without.has(one.key))]
      const [message] = own.filter(isDue).toSorted(byDueTime)
      return message === undefined ? [] : [{ key, message }]
    })
  }

  /** Number of tenants that may have due messages. For partitions only a read can tell. */
  promisingCount({ without }: TurnQuery): number {
    const free = this.free.stops.filter(({ entries }) => entries.some(isDue))
    const keys = new Set([...free, ...this.lanes.stops].map(({ key }) => key))
    return this.reached.filter((key) => keys.has(key) && !without.has(key)).length
  }
}

function inKeyOrder(rows: readonly LookRow[]): LookRow[] {
  return rows.toSorted((one, other) => {
    return one.key === other.key ? byDueTime(one, other) : one.key < other.key ? -1 : 1
  })
}

/** A leap, and the turn of its topic. */
export interface TopicLeap {
  readonly turn: TopicTurn
  readonly leap: MessageLeap
}

/** Next leaps, for topics with fewer candidates than their share that may have more. */
export function nextTopicLeaps(
  turns: readonly TopicTurn[],
  query: TurnQuery,
  round: number,
): TopicLeap[] {
  const counted = turns.map((turn) => {
    return {
      turn,
      count: turn.promisingCount(query),
      isOver: turn.free.isOver && turn.lanes.isOver,
    }
  })
  const sharing = counted.filter(({ isOver, count }) => !isOver || count > 0)
  const share = Math.ceil(query.limit / Math.max(1, sharing.length))
  const isEnough = counted.reduce((sum, { count }) => sum + count, 0) >= query.limit
  const open = sharing
    .filter(({ isOver, count }) => !isOver && (count < share || !isEnough))
    .slice(0, LEAPS_MAX)
  const count = Math.max(1, Math.floor(LEAPS_MAX / Math.max(1, open.length)))
  return open.flatMap(({ turn, count: found }) => {
    const wanted = Math.max(1, query.limit - found) * ROUND_GROWTH ** (round - 1)
    const { topic } = turn
    const leapsOf = (walk: TurnWalk<LookRow>, among: MessageLeap['among']) =>
      walk.leaps({ count, wanted }).map((leap) => ({ turn, leap: { ...leap, topic, among } }))
    const isLanesTurn = turn.hasManyLanes || turn.hasLook
    return [
      ...leapsOf(turn.free, FREE_LEAP),
      ...(isLanesTurn ? leapsOf(turn.lanes, LANE_LEAP) : []),
    ]
  })
}

/** Passes the rows that each leap has found to the walk of its topic. */
export function noteTopicLeaps(leaps: readonly TopicLeap[], rows: readonly LookRow[]): void {
  for (const turn of new Set(leaps.map((one) => one.turn))) {
    for (const among of [FREE_LEAP, LANE_LEAP] as const) {
      const own = leaps.flatMap((one, n) => {
        return one.turn === turn && one.leap.among === among ? [{ leap: one.leap, n }] : []
      })
      const walk = among === FREE_LEAP ? turn.free : turn.lanes
      walk.note(
        own.map(({ leap }) => leap),
        own.map(({ n }) => rows.filter((one) => one.origin === among && one.topic === n)),
      )
    }
  }
}
