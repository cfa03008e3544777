import type { MessageClaim } from '../../../core/store/durable-store.ts'
import { rotateBehind, TurnCursors } from '../../kit/turns.ts'
import type { Value } from '../driver/driver.ts'
import { numberArray, textArray } from '../driver/values.ts'
import { behind, remember, WalkSkips } from './walk.ts'

/** Topics, and tenants over all topics, for which the store remembers the last partition. */
const TOPICS_MAX = 10_000
const TENANTS_MAX = 4_096

/** Tenants of one topic whose last partitions a claim sends: more than one claim visits. */
const TENANTS_SENT_MAX = 256

/** The last turn of a claim; `null`: the walk has visited the last one and begins again. */
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

/** Remembers where the turns of messages stopped. */
export class MessageTurns {
  readonly #cursors = new TurnCursors()
  readonly #skips = new WalkSkips()
  /** The last partition of each topic, over all tenants. */
  readonly #partitions = new Map<string, string>()
  /** The last partition of each tenant, by topic. */
  readonly #partitionsByTenant = new Map<string, Map<string, string>>()
  #tenantCount = 0

  /** In the order of the parameters of the function. */
  values({ topics, limit, limits, withoutTenants = [] }: MessageClaim): Value[] {
    const limitOf = new Map(topics.map((topic, n) => [topic, limits?.[n] ?? limit]))
    const ordered = rotateBehind([...limitOf], ([topic]) => topic, this.#cursors.lastLane)
    const names = ordered.map(([topic]) => topic)
    const [first] = ordered
    return [
      textArray(names),
      numberArray(ordered.map(([, max]) => max)),
      textArray(names.map((topic) => behind(this.#cursors.tenantOf(topic)))),
      `${this.#skips.needsWalk(names, withoutTenants)}`,
      textArray(names.map((topic) => this.#partitions.get(topic))),
      this.#partitionsOf(names),
      textArray(withoutTenants),
      // The limit of a single topic is the limit of the claim.
      names.length === 1 ? Math.min(limit, first![1]) : limit,
    ]
  }

  stop({ topics: [only] }: MessageClaim, stop: MessageStop): void {
    switch (stop.kind) {
      case 'mixed':
        this.#skips.skipNext(only)
        return
      case 'turn':
        this.#cursors.lastLane = stop.topic
        return
      case 'tenant':
        this.#cursors.stopAt(stop.topic, stop.tenant ?? undefined)
        return
      case 'cursor':
        if (stop.partition === null) this.#partitions.delete(stop.topic)
        else remember(this.#partitions, stop.topic, stop.partition, TOPICS_MAX)
        return
      case 'partition':
        this.#stopIn(stop.topic, stop.tenant, stop.partition)
    }
  }

  #stopIn(topic: string, tenant: string, partition: string | null): void {
    const tenants = this.#partitionsByTenant.get(topic) ?? new Map<string, string>()
    if (tenants.delete(tenant)) this.#tenantCount--
    if (partition !== null) {
      tenants.set(tenant, partition)
      this.#tenantCount++
      const [oldest] = tenants.keys()
      if (this.#tenantCount > TENANTS_MAX && tenants.delete(oldest!)) this.#tenantCount--
    }
    if (tenants.size === 0) this.#partitionsByTenant.delete(topic)
    else this.#partitionsByTenant.set(topic, tenants)
  }

  /** JSON by topic and tenant. If a topic has many tenants, only the next ones are sent. */
  #partitionsOf(topics: readonly string[]): string | null {
    const sent = topics.flatMap((topic) => {
      const tenants = this.#partitionsByTenant.get(topic)
      if (tenants === undefined) return []
      const next = tenants.size > TENANTS_SENT_MAX ? this.#next(topic, tenants) : tenants
      return [[topic, Object.fromEntries(next)] as const]
    })
    return sent.length === 0 ? null : JSON.stringify(Object.fromEntries(sent))
  }

  /**
   * The database sorts by bytes and this does not. A tenant that is left out for that reason begins
   * with its first partition again.
   */
  #next(topic: string, tenants: ReadonlyMap<string, string>): [string, string][] {
    const last = this.#cursors.tenantOf(topic)
    return rotateBehind([...tenants], ([tenant]) => tenant, last).slice(0, TENANTS_SENT_MAX)
  }
}
