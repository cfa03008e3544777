/** How relays take messages: a look that locks nothing, a choice, and a transaction that takes. */
import type { HeldMessage, MessageClaim } from '../../core/durable-store.ts'
import type { Calls } from './calls.ts'
import type { Row } from './client.ts'
import { readCommitted, transact, type Session } from './driver.ts'
import { MESSAGE_ALL, NO_PARTITION, toHeld, toMessage, type MessageRow } from './message-columns.ts'
import {
  closeLanesSql,
  emptyLanesSql,
  FREE,
  headsSql,
  heldSql,
  holdSql,
  LANE,
  lockDueSql,
  lockFreeSql,
  lockLanesSql,
  lookSql,
  OWN,
} from './message-sql.ts'
import type { Inside } from './settlement.ts'

/** Lanes that one look goes through, and looks that one claim takes until it has something. */
const LANES_MAX = 500
const LOOKS_MAX = 8

/** More than a relay asks for at once. */
const MESSAGES_MAX = 1000

/** As many empty lanes are left open: one in constant use must not be closed each time. */
const EMPTY_LANES = 20

/** Takes messages for relays, and remembers where it has looked. */
export class MessageClaims {
  readonly #calls: Calls
  readonly #inside: () => Inside
  /** By topic, the lane that was looked at last, where there were more after it. */
  readonly #cursors = new Map<string, string>()

  constructor(calls: Calls, inside: () => Inside) {
    this.#calls = calls
    this.#inside = inside
  }

  async claim(request: MessageClaim, signal?: AbortSignal): Promise<HeldMessage[]> {
    const limit = Math.min(request.limit, MESSAGES_MAX)
    const topics = [...new Set(request.topics)]
    if (limit < 1 || topics.length === 0) return []
    const asked = { ...request, topics, limit }
    const tour = new Tour(topics, this.#cursors)
    // Where a look has found nothing in its lanes, it goes on with those after them.
    for (let looks = 1; looks <= LOOKS_MAX; looks++) {
      const { taken, isLate } = await this.#calls.make(
        'claim messages',
        (session) => this.#lookAndTake(session, asked, tour),
        signal,
      )
      if (taken.length > 0 || (tour.isOver && !isLate)) return taken
    }
    return []
  }

  async #lookAndTake(session: Session, request: MessageClaim, tour: Tour): Promise<Taken> {
    const inside = this.#inside()
    const { token, limit } = request
    const topics = request.topics.map((topic) => {
      return { topic, after: this.#cursors.get(topic) ?? NO_PARTITION }
    })
    const look = { token, limit, topics, lanesMax: LANES_MAX }
    const sql = lookSql(inside.tables, inside.now, look)
    const seen = (await readCommitted(session, sql)).map(toSeen)
    const own = seen.filter(({ origin }) => origin === OWN)
    if (own.length > 0) {
      return { taken: await readHeld(session, inside, { token, own }), isLate: false }
    }
    for (const [n, topic] of request.topics.entries()) {
      const lanes = seen.flatMap((one) =>
        one.origin === LANE && one.topic === n ? [one.lane] : [],
      )
      const last = lanes.length === LANES_MAX ? lanes.toSorted(byBytes).at(-1) : undefined
      tour.note(topic, last)
      if (last === undefined) this.#cursors.delete(topic)
      else this.#cursors.set(topic, last)
    }
    await closeEmpty(session, inside, { topics: request.topics, seen })
    const chosen = choose(seen, limit)
    if (chosen.length === 0) return { taken: [], isLate: false }
    const taken = await transact(session, () => take(session, inside, { request, chosen }))
    return { taken, isLate: taken.length === 0 }
  }
}

interface Taken {
  readonly taken: HeldMessage[]
  /** There were some, and others were faster with all of them: there may be more. */
  readonly isLate: boolean
}

/** As the database sorts them. */
function byBytes(one: string, other: string): number {
  return Buffer.compare(Buffer.from(one), Buffer.from(other))
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

/** One row of a look. */
interface Seen {
  readonly origin: number
  /** Its number among those that were asked for. */
  readonly topic: number
  readonly id: string | undefined
  readonly dueAtMs: number | undefined
  readonly addedAtUs: number
  readonly lane: string
}

export function toSeen([origin, topic, id, dueAt, addedAt, lane]: Row): Seen {
  return {
    origin: Number(origin),
    topic: Number(topic),
    id: typeof id === 'string' ? id : undefined,
    dueAtMs: dueAt === null ? undefined : Number(dueAt),
    addedAtUs: Number(addedAt),
    lane: Buffer.from((lane as string | null) ?? '', 'hex').toString('utf8'),
  }
}

/** A repeated claim: what it had taken the first time. */
async function readHeld(
  session: Session,
  { tables }: Inside,
  { token, own }: { readonly token: string; readonly own: readonly Seen[] },
): Promise<HeldMessage[]> {
  const sql = heldSql(
    tables,
    token,
    own.flatMap(({ id }) => id ?? []),
  )
  const rows = await readCommitted(session, sql)
  return rows.map((row) => toHeld(toMessage(MESSAGE_ALL, row)))
}

/** The longest due. */
function choose(seen: readonly Seen[], limit: number): Seen[] {
  return seen
    .filter(({ id, dueAtMs }) => id !== undefined && dueAtMs !== undefined)
    .toSorted(byDueTime)
    .slice(0, limit)
}

type Due = Pick<MessageRow, 'dueAtMs' | 'addedAtUs'>

function byDueTime(one: Due, other: Due): number {
  return (one.dueAtMs ?? 0) - (other.dueAtMs ?? 0) || one.addedAtUs - other.addedAtUs
}

async function take(
  session: Session,
  { tables, now }: Inside,
  { request, chosen }: { readonly request: MessageClaim; readonly chosen: readonly Seen[] },
): Promise<HeldMessage[]> {
  const free: MessageRow[] = []
  for (const [n, topic] of request.topics.entries()) {
    const limit = chosen.filter((one) => one.origin === FREE && one.topic === n).length
    if (limit === 0) continue
    // Not those that were seen, but as many: others who claim have seen the same ones.
    const rows = await session.rows(lockFreeSql(tables, now, { topic, limit }))
    free.push(...rows.map((row) => toMessage(MESSAGE_ALL, row)))
  }
  const heads = await lockHeads(
    session,
    { tables, now },
    chosen.flatMap(({ origin, id }) => (origin === LANE && id !== undefined ? [id] : [])),
  )
  const taken = [...free, ...heads]
  if (taken.length === 0) return []
  const { token, leaseMs } = request
  const of = { ids: taken.map(({ id }) => id).toSorted(), token, leaseMs }
  await session.run(holdSql(tables, now, of))
  return taken.toSorted(byDueTime).map((row) => toHeld({ ...row, token, attempt: row.attempt + 1 }))
}

/** Looks again, under their locks, whether they are the heads of their partitions. */
async function lockHeads(
  session: Session,
  { tables, now }: Inside,
  ids: readonly string[],
): Promise<MessageRow[]> {
  if (ids.length === 0) return []
  const rows = await session.rows(lockDueSql(tables, now, ids.toSorted()))
  const locked = rows.map((row) => toMessage(MESSAGE_ALL, row))
  if (locked.length === 0) return []
  const heads = await session.rows(
    headsSql(
      tables,
      locked.map(({ id }) => id),
    ),
  )
  const isHead = new Set(heads.map(([id]) => id))
  return locked.filter(({ id }) => isHead.has(id))
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
    if (lanes.length > EMPTY_LANES) await closeLanes(session, inside, { topic, lanes })
  }
}

/**
 * Under the locks of their counters, which whoever adds a message has until it commits: what is
 * empty then stays so. A counter that is locked is skipped, for it is in use.
 */
function closeLanes(
  session: Session,
  { tables }: Inside,
  { topic, lanes }: { readonly topic: string; readonly lanes: readonly string[] },
): Promise<void> {
  return transact(session, async () => {
    const locked = toLanes(await session.rows(lockLanesSql(tables, { topic, lanes })))
    if (locked.length === 0) return
    const empty = toLanes(await session.rows(emptyLanesSql(tables, { topic, lanes: locked })))
    if (empty.length > 0) await session.run(closeLanesSql(tables, { topic, lanes: empty }))
  })
}

function toLanes(rows: readonly Row[]): string[] {
  return rows.map(([lane]) => Buffer.from(String(lane), 'hex').toString('utf8'))
}
