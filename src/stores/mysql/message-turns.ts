/** Which messages a claim takes, in the turns of topics and tenants. */
import { pickInTurns, rotateBehind } from '../../core/turns.ts'
import { readCommitted, type Session } from './driver.ts'
import { LANE, leapLookSql, type TenantLanes } from './look-sql.ts'
import { NO_PARTITION } from './message-columns.ts'
import { ROUNDS_MAX } from './record-turns.ts'
import { byDueTime, isDue, toSeen, type Seen } from './seen-messages.ts'
import type { Inside } from './settlement.ts'
import {
  nextTopicLeaps,
  noteTopicLeaps,
  TopicTurn,
  type Asked,
  type Candidate,
  type TopicLeap,
} from './topic-turn.ts'
import { CursorMap, TurnMemory } from './turn-memory.ts'
import { cursorAfter } from './turn-walk.ts'

/** Partitions of one tenant that are looked at when it has its turn, and tenants in one claim. */
const LANES_OF_TENANT = 8
const TENANTS_MAX = 64

export class MessageTurns {
  readonly #memory = new TurnMemory()
  /** By tenant and topic, the lane that was looked at last. */
  readonly #lanes = new CursorMap()
  /** There was more than could be handed out: the next look leaps at once. */
  #isBehind = false

  begin(topics: readonly { readonly topic: string; readonly max: number }[]): TopicTurn[] {
    return topics.map((one) => {
      const free = this.#memory.of(`free ${one.topic}`)
      return new TopicTurn(one, { free, lanes: this.#memory.of(`lanes ${one.topic}`) })
    })
  }

  /** To be made together with the plain look. */
  firstLeaps(turns: readonly TopicTurn[], asked: Asked): TopicLeap[] {
    return this.#isBehind ? nextTopicLeaps(turns, asked, 1) : []
  }

  /** Of what the plain look has seen, or of what is found by further leaps: see `chosen`. */
  async choose(
    session: Session,
    inside: Inside,
    of: {
      readonly turns: readonly TopicTurn[]
      readonly asked: Asked
      readonly leaps: readonly TopicLeap[]
      readonly leapt: readonly Seen[]
    },
  ): Promise<void> {
    const { turns, asked } = of
    const due = turns.map((turn) => ({ turn, messages: turn.due(asked) }))
    const isForAll =
      due.every(({ turn, messages }) => turn.isKnown && messages.length <= turn.max) &&
      due.flatMap(({ messages }) => messages).length <= asked.limit
    this.#isBehind = !isForAll
    if (isForAll) {
      for (const { turn, messages } of due) turn.chosen.push(...messages)
      return
    }
    noteTopicLeaps(of.leaps, of.leapt)
    for (let round = of.leaps.length > 0 ? 2 : 1; round <= ROUNDS_MAX; round++) {
      const leaps = nextTopicLeaps(turns, asked, round)
      if (leaps.length === 0) break
      const look = { leaps: leaps.map(({ leap }) => leap), tenants: [] }
      const rows = await readCommitted(session, leapLookSql(inside.tables, inside.now, look))
      noteTopicLeaps(leaps, rows.map(toSeen))
    }
    await this.#lookAtLanes(session, inside, { turns, asked })
    this.#pick(turns, asked)
  }

  /** Where not all partitions were seen, at some of each tenant that has its turn. */
  async #lookAtLanes(
    session: Session,
    { tables, now }: Inside,
    { turns, asked }: { readonly turns: readonly TopicTurn[]; readonly asked: Asked },
  ): Promise<void> {
    const parted = turns.filter(({ hasAllHeads }) => !hasAllHeads)
    const most = Math.min(asked.limit, Math.ceil(TENANTS_MAX / Math.max(1, parted.length)))
    const wanted = parted.flatMap((turn) => {
      const keys = turn.unlooked(asked).slice(0, most)
      return keys.map((tenant) => ({ turn, tenant }))
    })
    if (wanted.length === 0) return
    const tenants = wanted.map(({ turn: { topic }, tenant }): TenantLanes => {
      const after = this.#lanes.get(`${tenant} ${topic}`) ?? NO_PARTITION
      return { topic, tenant, after, lanesMax: LANES_OF_TENANT }
    })
    const rows = await readCommitted(session, leapLookSql(tables, now, { leaps: [], tenants }))
    const seen = rows.map(toSeen).filter(({ origin }) => origin === LANE)
    for (const [n, { turn, tenant }] of wanted.entries()) {
      turn.heads.set(
        tenant,
        seen.filter((one) => one.topic === n),
      )
    }
  }

  /** In turns, and then the longest due of what is left. */
  #pick(turns: readonly TopicTurn[], asked: Asked): void {
    const lanes = turns.map((turn) => {
      return { key: turn.topic, max: turn.max, turn, candidates: turn.candidates(asked) }
    })
    const ordered = rotateBehind(lanes, ({ key }) => key, this.#memory.lastLane)
    const picks = pickInTurns(ordered, asked.limit)
    this.#memory.lastLane = picks.at(-1)?.lane ?? this.#memory.lastLane
    for (const { key, turn, candidates } of lanes) {
      const own = picks.filter(({ lane }) => lane === key)
      turn.chosen.push(...own.map(({ candidate }) => candidate.message))
      this.#remember(turn, candidates, asked)
    }
    fill(turns, asked)
    for (const turn of turns) if (!turn.hasAllHeads) this.#rememberLanes(turn)
  }

  /** A tenant whose partitions were not looked at has not had its turn. */
  #remember(turn: TopicTurn, candidates: readonly Candidate[], asked: Asked): void {
    const { topic, free, lanes, chosen } = turn
    const left = candidates.filter(({ message }) => !chosen.includes(message))
    const isLeft = new Set([...left.map(({ key }) => key), ...turn.unlooked(asked)])
    const stops = turn.reached.map((key) => ({ key, isLeft: isLeft.has(key) }))
    const cursor = cursorAfter(turn.cursor, stops)
    this.#memory.set(`free ${topic}`, free.rememberAt(cursor))
    const ofLanes = lanes.rememberAt(cursor)
    this.#memory.set(`lanes ${topic}`, turn.hasAllHeads ? { ...ofLanes, known: [] } : ofLanes)
  }

  /** Partitions of a tenant go in turns as well. After the last one come the first again. */
  #rememberLanes({ topic, heads, chosen }: TopicTurn): void {
    const ids = new Set(chosen.map(({ id }) => id))
    for (const [tenant, seen] of heads) {
      const name = `${tenant} ${topic}`
      const stops = seen.map((one) => {
        return { key: one.lane, isLeft: isDue(one) && !ids.has(one.id) }
      })
      const isRound = seen.length < LANES_OF_TENANT && !stops.some(({ isLeft }) => isLeft)
      const before = this.#lanes.get(name)
      const cursor = isRound ? undefined : cursorAfter(before, stops)
      if (cursor === undefined) this.#lanes.delete(name)
      else if (cursor !== before) this.#lanes.set(name, cursor)
    }
  }
}

function fill(turns: readonly TopicTurn[], asked: Asked): void {
  const ids = new Set(turns.flatMap(({ chosen }) => chosen.map(({ id }) => id)))
  const rest = turns
    .flatMap((turn) => turn.due(asked).map((message) => ({ turn, message })))
    .filter(({ message }) => !ids.has(message.id))
    .toSorted((one, other) => byDueTime(one.message, other.message))
  let left = asked.limit - ids.size
  for (const { turn, message } of rest) {
    if (left === 0) return
    if (turn.chosen.length === turn.max) continue
    turn.chosen.push(message)
    left--
  }
}
