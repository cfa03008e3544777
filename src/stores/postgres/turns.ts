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

/** Calls in a row that do without turns where the longest due are of many tenants anyway. */
const RESTS_MAX = 7

/** Whether a call needs turns. A leap costs as much as five rows that are read in their order. */
class Rests {
  #lane: string | undefined
  #left = 0

  /** Asked once for each call. */
  walks(lanes: readonly string[], without: readonly string[]): boolean {
    if (lanes.length !== 1 || lanes[0] !== this.#lane || without.length > 0) return true
    return --this.#left < 0
  }

  /** The longest due of this lane are of as many tenants as were asked for. */
  rest(lane: string | undefined): void {
    this.#lane = lane
    this.#left = RESTS_MAX
  }
}

type TurnRow = readonly [
  kind: 'due' | 'cursor' | 'turn' | 'mixed',
  name: string,
  version: number,
  identity: string,
  recordId: string,
  tenant: string,
  ...columns: Row,
]

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
  stop(operations: readonly OperationName[], rows: readonly Row[]): Row[] {
    return rows.flatMap((row) => {
      const [kind, name, version, ...view] = row as TurnRow
      if (kind === 'due') return [[name, version, ...view]]
      if (kind === 'mixed') this.#rests.rest(operations.map(laneOf)[0])
      else if (kind === 'turn') this.#cursors.lastLane = laneOf({ name, version })
      else this.#cursors.stopAt(laneOf({ name, version }), view[2])
      return []
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
  stop(rows: readonly Row[]): Row[] {
    return rows.flatMap((row) => {
      const [kind, name, version, ...view] = row as TurnRow
      if (kind === 'due') return [view]
      if (kind === 'turn') this.#last = { name, version }
      else put(this.#stops, laneOf({ name, version }), { name, version, tenant: view[2] })
      return []
    })
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

/** A turn that a claim was at last; `partition: null`: the walk has come around. */
export type MessageStop =
  | { readonly kind: 'turn'; readonly topic: string }
  | { readonly kind: 'mixed' }
  | { readonly kind: 'tenant'; readonly topic: string; readonly tenant: string }
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
        this.#cursors.stopAt(stop.topic, stop.tenant)
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
