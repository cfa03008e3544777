import type {
  DueQuery,
  MessageClaim,
  OperationName,
  UnknownRequest,
} from '../../core/durable-store.ts'
import { rotateBehind, TurnCursors } from '../../core/turns.ts'
import { numberArray, textArray, textValue } from './array-literal.ts'
import type { Row, Value } from './client.ts'
import { NO_VERSION } from './turn-functions.ts'

/** A walk that begins behind this tenant: no text is between another one and this after it. */
function behind(tenant: string | undefined): string {
  return tenant === undefined ? '' : `${tenant}\u0001`
}

/**
 * Whether a call needs turns. A leap costs as much as five rows that are read in their order, so
 * every second call does without where the longest due are of many tenants. They may be many
 * floods, and a quiet tenant behind them is not among them: so it is never more than every second.
 */
class Rests {
  #lane: string | undefined

  /** Asked once for each call. */
  walks(lanes: readonly string[], without: readonly string[]): boolean {
    if (lanes.length !== 1 || without.length > 0) return true
    const isResting = lanes[0] === this.#lane
    this.#lane = undefined
    return !isResting
  }

  /** The longest due of this lane are of as many tenants as were asked for. */
  rest(lane: string | undefined): void {
    this.#lane = lane
  }
}

/** How often a call walks that finds nothing before it has to end. */
const WALKS_MAX = 8

interface Walked {
  readonly rows: Row[]
  /** Nothing was found, and not everything was examined. */
  readonly isCut: boolean
}

/**
 * Walks until something is found or everything was examined. Only a call that leaves tenants or
 * operations out can be cut short: beside one tenant that floods and is left out, at least 4,000
 * others wait for later. After eight walks, through 32,000 of them, the answer is none although
 * something may be due, and the next call goes on there. Each walk is one statement with 4,000
 * looks into an index.
 */
export async function walkOn(walk: () => Promise<Walked>): Promise<Row[]> {
  let walked = await walk()
  for (let walks = 1; walked.isCut && walks < WALKS_MAX; walks++) walked = await walk()
  return walked.rows
}

type DueRow = readonly [kind: 'due', name: string, version: number, ...view: Row]

/** What a walk tells beside records. Without a name or a tenant: the next begins with the first. */
type StopRow = readonly [
  kind: 'cursor' | 'turn' | 'mixed' | 'cut',
  name: string | null,
  version: number,
  identity: null,
  recordId: null,
  tenant: string | null,
]

/** The records that a walk gives, without the kind; `note` gets the other rows. */
function toWalked(rows: readonly Row[], note: (row: StopRow) => void): Walked {
  const due: Row[] = []
  for (const row of rows as readonly (DueRow | StopRow)[]) {
    if (row[0] === 'due') due.push(row.slice(1))
    else note(row)
  }
  return { rows: due, isCut: rows.some(([kind]) => kind === 'cut') }
}

/** Of an operation; of a name with a version never the same as of another. */
function laneOf({ name, version }: OperationName): string {
  return `${version} ${name}`
}

/** Where the turns of due operations stopped. */
export class DueTurns {
  readonly #cursors = new TurnCursors()
  readonly #rests = new Rests()

  /** Each operation once, the one whose turn is next first. */
  order(operations: readonly OperationName[]): OperationName[] {
    const lanes = new Map(operations.map((one) => [laneOf(one), one]))
    return rotateBehind([...lanes.values()], laneOf, this.#cursors.lastLane)
  }

  /** In the order of the parameters of the function. */
  values(operations: readonly OperationName[], { limit, withoutTenants = [] }: DueQuery): Value[] {
    const lanes = operations.map(laneOf)
    return [
      textArray(lanes.map((lane) => behind(this.#cursors.tenantOf(lane)))),
      `${this.#rests.walks(lanes, withoutTenants)}`,
      limit,
      textArray(withoutTenants),
    ]
  }

  /** Remembers where a call has stopped. Gives name, version and view of each record. */
  stop(operations: readonly OperationName[], rows: readonly Row[]): Walked {
    return toWalked(rows, ([kind, name, version, , , tenant]) => {
      if (kind === 'mixed') this.#rests.rest(operations.map(laneOf)[0])
      if (name === null) return
      const lane = laneOf({ name, version })
      if (kind === 'turn') this.#cursors.lastLane = lane
      else if (kind === 'cursor') this.#cursors.stopAt(lane, tenant ?? undefined)
    })
  }
}

/** Operations with unknown records of which it is remembered where their tenants stopped. */
const GROUPS_MAX = 256

/** Where the turns of unknown records stopped. */
export class UnknownTurns {
  readonly #stops = new Map<string, OperationName & { readonly tenant: string }>()
  #last: OperationName | undefined

  /** In the order of the parameters of the function. */
  values({ withoutOperations = [], withoutTenants = [] }: UnknownRequest): Value[] {
    const stops = [...this.#stops.values()]
    return [
      textValue(this.#last?.name),
      this.#last?.version ?? null,
      textArray(stops.map(({ name }) => name)),
      numberArray(stops.map(({ version }) => version)),
      textArray(stops.map(({ tenant }) => behind(tenant))),
      textArray(withoutOperations.map(({ name }) => name)),
      numberArray(withoutOperations.map(({ version }) => version ?? NO_VERSION)),
      textArray(withoutTenants),
    ]
  }

  /** Remembers where a call has stopped. Gives the view of each record. */
  stop(rows: readonly Row[]): Walked {
    const walked = toWalked(rows, ([kind, name, version, , , tenant]) => {
      if (kind === 'turn') this.#last = name === null ? undefined : { name, version }
      if (kind !== 'cursor' || name === null) return
      const lane = laneOf({ name, version })
      if (tenant === null) this.#stops.delete(lane)
      else put(this.#stops, lane, { name, version, tenant })
    })
    return { ...walked, rows: walked.rows.map((row) => row.slice(2)) }
  }
}

/** Set anew, so that what was used least recently is forgotten first. */
function put<Item>(stops: Map<string, Item>, key: string, item: Item, max = GROUPS_MAX): void {
  stops.delete(key)
  stops.set(key, item)
  if (stops.size <= max) return
  const [oldest] = stops.keys()
  if (oldest !== undefined) stops.delete(oldest)
}

/** Topics, and tenants in all of them, of which it is remembered which partition was last. */
const TOPICS_MAX = 10_000
const TENANTS_MAX = 4_096

/** Tenants of one topic whose last partitions are sent with a claim: more than one reaches. */
const TENANTS_SENT_MAX = 256

/** A turn that a claim was at last; `null`: the walk has come around. */
export type MessageStop =
  | { readonly kind: 'turn'; readonly topic: string }
  | { readonly kind: 'mixed' }
  | { readonly kind: 'tenant'; readonly topic: string; readonly tenant: string | null }
  | { readonly kind: 'cursor'; readonly topic: string; readonly partition: string | null }
  | {
      readonly kind: 'partition'
      readonly topic: string
      readonly tenant: string
      readonly partition: string | null
    }

/** Where the turns of messages stopped. */
export class MessageTurns {
  readonly #cursors = new TurnCursors()
  readonly #rests = new Rests()
  /** By topic: the partition that was last, whichever tenant it is of. */
  readonly #partitions = new Map<string, string>()
  /** By topic and tenant: the partition of the tenant that was last. */
  readonly #ofTenants = new Map<string, Map<string, string>>()
  #tenants = 0

  /** In the order of the parameters of the function. */
  values({ topics, limit, limits, withoutTenants = [] }: MessageClaim): Value[] {
    const asked = new Map(topics.map((topic, n) => [topic, limits?.[n] ?? limit]))
    const ordered = rotateBehind([...asked], ([topic]) => topic, this.#cursors.lastLane)
    const names = ordered.map(([topic]) => topic)
    const [first] = ordered
    return [
      textArray(names),
      numberArray(ordered.map(([, max]) => max)),
      textArray(names.map((topic) => behind(this.#cursors.tenantOf(topic)))),
      `${this.#rests.walks(names, withoutTenants)}`,
      textArray(names.map((topic) => this.#partitions.get(topic))),
      this.#partitionsOf(names),
      textArray(withoutTenants),
      // With one topic its limit is that of the claim.
      names.length === 1 ? Math.min(limit, first![1]) : limit,
    ]
  }

  stop({ topics: [only] }: MessageClaim, stop: MessageStop): void {
    switch (stop.kind) {
      case 'mixed':
        this.#rests.rest(only)
        return
      case 'turn':
        this.#cursors.lastLane = stop.topic
        return
      case 'tenant':
        this.#cursors.stopAt(stop.topic, stop.tenant ?? undefined)
        return
      case 'cursor':
        if (stop.partition === null) this.#partitions.delete(stop.topic)
        else put(this.#partitions, stop.topic, stop.partition, TOPICS_MAX)
        return
      case 'partition':
        this.#stopIn(stop.topic, stop.tenant, stop.partition)
    }
  }

  #stopIn(topic: string, tenant: string, partition: string | null): void {
    const tenants = this.#ofTenants.get(topic) ?? new Map<string, string>()
    if (tenants.delete(tenant)) this.#tenants--
    if (partition !== null) {
      tenants.set(tenant, partition)
      this.#tenants++
      const [oldest] = tenants.keys()
      if (this.#tenants > TENANTS_MAX && tenants.delete(oldest!)) this.#tenants--
    }
    if (tenants.size === 0) this.#ofTenants.delete(topic)
    else this.#ofTenants.set(topic, tenants)
  }

  /** As JSON, by topic and tenant. Of many, those that come next. */
  #partitionsOf(topics: readonly string[]): string | null {
    const sent = topics.flatMap((topic) => {
      const tenants = this.#ofTenants.get(topic)
      if (tenants === undefined) return []
      const next = tenants.size > TENANTS_SENT_MAX ? this.#next(topic, tenants) : tenants
      return [[topic, Object.fromEntries(next)] as const]
    })
    return sent.length === 0 ? null : JSON.stringify(Object.fromEntries(sent))
  }

  /** The database orders by bytes and this does not: a tenant that is missed begins anew. */
  #next(topic: string, tenants: ReadonlyMap<string, string>): [string, string][] {
    const last = this.#cursors.tenantOf(topic)
    return rotateBehind([...tenants], ([tenant]) => tenant, last).slice(0, TENANTS_SENT_MAX)
  }
}
