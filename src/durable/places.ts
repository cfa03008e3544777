import { Pauses, type PausesOptions, type PausesStats, type WorkEnd } from './pauses.ts'

/** What a piece of work is counted by. */
export interface Lane {
  /** The name of its operation, or its topic. */
  readonly group: string
  readonly tenant: string
}

export interface PlacesOptions extends PausesOptions {
  /** Places for any work. */
  readonly places: number
  /** Places of one group, and of one tenant, at the most. */
  readonly perGroup: number
  readonly perTenant: number
  /** Further places, for tenants and for groups that have none. */
  readonly reserve: number
}

/** What may be begun now: at most `limit`, of these groups, and of none of these tenants. */
export interface Ask {
  readonly limit: number
  readonly groups: readonly string[]
  readonly withoutTenants: readonly string[]
}

/** Where a place is from: any work may have it, or tenants or groups that have none. */
type Pool = 'ordinary' | 'tenants' | 'groups'

/** One place that is taken. */
export interface TakenPlace {
  /** The work has ended. @default 'ran' */
  end(end?: WorkEnd): void
  /**
   * The work runs on although its time limit is over: the place is free for other work, and the
   * work counts as overdue until `end`. `subject` is the id of its record or message.
   */
  overdue(subject: string): void
}

export interface PlacesStats extends PausesStats {
  /** Places that are taken. */
  readonly running: number
}

/**
 * Divides the places of a worker, a relay or a reconciler, so that one operation, topic or tenant
 * cannot hold them all.
 *
 * Any work may use the ordinary places, so a single tenant loses nothing by the division. Once they
 * are taken, half of the reserve is left for tenants that have no place, and the rest for groups
 * that have no place. The halves are counted apart: many operations of one tenant do not fill what
 * is left for other tenants. Work that ignores its time limit gives its place back and is counted.
 * Where too much of one group does so, the group is paused (`pauses`), because each such call keeps
 * its memory and its connections.
 */
export class Places {
  readonly pauses: Pauses
  readonly #options: PlacesOptions
  readonly #groups = new Map<string, number>()
  readonly #tenants = new Map<string, number>()
  /** Places that are taken. */
  readonly #taken: Record<Pool, number> = { ordinary: 0, tenants: 0, groups: 0 }
  readonly #sizes: Readonly<Record<Pool, number>>

  constructor(options: PlacesOptions) {
    this.#options = options
    this.pauses = new Pauses(options)
    const { places, reserve } = options
    const tenants = Math.floor(reserve / 2)
    this.#sizes = { ordinary: places, tenants, groups: reserve - tenants }
  }

  get running(): number {
    const { ordinary, tenants, groups } = this.#taken
    return ordinary + tenants + groups
  }

  /** Ordinary places that are free. */
  get free(): number {
    return this.#freeIn('ordinary')
  }

  /** Places that a group has. */
  ofGroup(group: string): number {
    return this.#groups.get(group) ?? 0
  }

  /** Places that a tenant has. */
  ofTenant(tenant: string): number {
    return this.#tenants.get(tenant) ?? 0
  }

  /** The tenants that have a place. */
  tenants(): string[] {
    return [...this.#tenants.keys()]
  }

  /** What may be begun of these groups without the reserve; `undefined`: nothing. */
  ask(groups: readonly string[]): Ask | undefined {
    const { perTenant } = this.#options
    const full = [...this.#tenants].flatMap(([name, count]) => (count >= perTenant ? [name] : []))
    return toAsk(this.free, this.#open(groups), full)
  }

  /** The same for the reserve. Each is worth asking for where the one before brought nothing. */
  askReserve(groups: readonly string[]): Ask[] {
    if (this.free > 0) return []
    const open = this.#open(groups)
    const idle = open.filter((group) => !this.#groups.has(group))
    return [
      toAsk(this.#freeIn('tenants'), open, this.tenants()),
      toAsk(this.#freeIn('groups'), idle, []),
    ].filter((ask) => ask !== undefined)
  }

  /** One piece of work for each of these groups that is paused and should try one now. */
  askTries(groups: readonly string[]): Ask[] {
    const tries = this.pauses.askTries(groups)
    return tries.map((group) => ({ limit: 1, groups: [group], withoutTenants: [] }))
  }

  /** Takes a place; `undefined` where this work may not begin now. */
  take(lane: Lane): TakenPlace | undefined {
    const pool = this.#poolFor(lane)
    if (pool === undefined) return undefined
    this.#taken[pool]++
    add(this.#groups, lane.group, 1)
    add(this.#tenants, lane.tenant, 1)
    const tellEnd = this.pauses.begin(lane.group)
    let state: 'running' | 'overdue' | 'ended' = 'running'
    let endOverdue: () => void = () => undefined
    return {
      end: (end = 'ran') => {
        if (state === 'overdue') endOverdue()
        if (state === 'running') {
          this.#leave(lane, pool)
          tellEnd(end)
        }
        state = 'ended'
      },
      overdue: (subject) => {
        if (state !== 'running') return
        state = 'overdue'
        this.#leave(lane, pool)
        endOverdue = this.pauses.countOverdue(lane.group, subject)
      },
    }
  }

  mayTake(lane: Lane): boolean {
    return this.#poolFor(lane) !== undefined
  }

  /** Whether the limits of its group and its tenant leave room for this work. */
  isWithinLimits({ group, tenant }: Lane): boolean {
    const { perGroup, perTenant } = this.#options
    if (this.ofGroup(group) >= perGroup || this.ofTenant(tenant) >= perTenant) return false
    return this.pauses.mayBegin(group)
  }

  #poolFor(lane: Lane): Pool | undefined {
    if (!this.isWithinLimits(lane)) return undefined
    if (this.free > 0) return 'ordinary'
    if (this.ofTenant(lane.tenant) === 0 && this.#freeIn('tenants') > 0) return 'tenants'
    return !this.#groups.has(lane.group) && this.#freeIn('groups') > 0 ? 'groups' : undefined
  }

  stats(): PlacesStats {
    return { running: this.running, ...this.pauses.stats() }
  }

  #freeIn(pool: Pool): number {
    return this.#sizes[pool] - this.#taken[pool]
  }

  #open(groups: readonly string[]): string[] {
    const { perGroup } = this.#options
    return groups.filter((group) => {
      return !this.pauses.isPaused(group) && this.ofGroup(group) < perGroup
    })
  }

  #leave({ group, tenant }: Lane, pool: Pool): void {
    this.#taken[pool]--
    add(this.#groups, group, -1)
    add(this.#tenants, tenant, -1)
  }
}

function toAsk(
  limit: number,
  groups: readonly string[],
  withoutTenants: readonly string[],
): Ask | undefined {
  return limit > 0 && groups.length > 0 ? { limit, groups, withoutTenants } : undefined
}

/** Adds to a count, and forgets a count of zero, so that the map has no more than what runs. */
function add(counts: Map<string, number>, name: string, change: number): number {
  const count = (counts.get(name) ?? 0) + change
  if (count > 0) counts.set(name, count)
  else counts.delete(name)
  return count
}
