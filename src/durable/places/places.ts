import { Pauses, type PausesOptions, type PausesStats, type WorkEnd } from './pauses.ts'

/** The group and the tenant by which a piece of work is counted. */
export interface Lane {
  /** The name of the operation, or the topic. */
  readonly group: string
  readonly tenant: string
}

export interface PlacesOptions extends PausesOptions {
  /** Ordinary places: any work may have them. */
  readonly places: number
  /** The most places that one group, or one tenant, may have. */
  readonly perGroup: number
  readonly perTenant: number
  /** Additional places for tenants and groups that have no place. */
  readonly reserve: number
}

/** Work that may start now: at most `limit`, only of `groups`, and not of `withoutTenants`. */
export interface WorkQuery {
  readonly limit: number
  readonly groups: readonly string[]
  readonly withoutTenants: readonly string[]
}

/** `ordinary`: for any work. `tenants`, `groups`: the halves of the reserve. */
type Pool = 'ordinary' | 'tenants' | 'groups'

/** A place while work has it. */
export interface PlaceHandle {
  /** The work has ended. @default 'ran' */
  end(end?: WorkEnd): void
  /**
   * The work still runs after its time limit. The place becomes free for other work, and the work
   * counts as overdue until `end`. `subject` is the id of its record or message.
   */
  overdue(subject: string): void
}

export interface PlacesStats extends PausesStats {
  /** Operations, handlers or records in progress, without those that are overdue. */
  readonly running: number
}

/**
 * Divides the places of a worker, a relay or a reconciler, so that one operation, topic or tenant
 * cannot hold them all.
 *
 * Any work may use the ordinary places, so a single tenant can use all of them. When they are
 * taken, half of the reserve is for tenants without a place and the rest for groups without a
 * place. The halves are counted separately, so that many operations of one tenant do not fill the
 * half for other tenants. Work that ignores its time limit loses its place and counts as overdue. A
 * group with too much overdue work is paused (`pauses`), because each such call keeps its memory
 * and its connections.
 */
export class Places {
  readonly pauses: Pauses
  readonly #options: PlacesOptions
  readonly #groups = new Map<string, number>()
  readonly #tenants = new Map<string, number>()
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

  /** Free ordinary places. */
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

  /** Work of these groups for the ordinary places; `undefined` if none may start. */
  query(groups: readonly string[]): WorkQuery | undefined {
    const { perTenant } = this.#options
    const full = [...this.#tenants].flatMap(([name, count]) => (count >= perTenant ? [name] : []))
    return toQuery(this.free, this.#open(groups), full)
  }

  /** Work for the reserve: first for tenants without a place, then for groups without one. */
  reserveQueries(groups: readonly string[]): WorkQuery[] {
    if (this.free > 0) return []
    const open = this.#open(groups)
    const idle = open.filter((group) => !this.#groups.has(group))
    return [
      toQuery(this.#freeIn('tenants'), open, this.tenants()),
      toQuery(this.#freeIn('groups'), idle, []),
    ].filter((query) => query !== undefined)
  }

  /** One piece of work for each of these groups that is paused and whose trial is due. */
  trialQueries(groups: readonly string[]): WorkQuery[] {
    const due = this.pauses.startTrials(groups)
    return due.map((group) => ({ limit: 1, groups: [group], withoutTenants: [] }))
  }

  /** Takes a place; `undefined` if this work may not start now. */
  take(lane: Lane): PlaceHandle | undefined {
    const pool = this.#poolFor(lane)
    if (pool === undefined) return undefined
    this.#taken[pool]++
    add(this.#groups, lane.group, 1)
    add(this.#tenants, lane.tenant, 1)
    const onEnd = this.pauses.begin(lane.group)
    let state: 'running' | 'overdue' | 'ended' = 'running'
    let endOverdue: () => void = () => undefined
    return {
      end: (end = 'ran') => {
        if (state === 'overdue') endOverdue()
        if (state === 'running') {
          this.#leave(lane, pool)
          onEnd(end)
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

  /** Whether the limits of the group and the tenant leave room for this work. */
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

function toQuery(
  limit: number,
  groups: readonly string[],
  withoutTenants: readonly string[],
): WorkQuery | undefined {
  return limit > 0 && groups.length > 0 ? { limit, groups, withoutTenants } : undefined
}

/** Deletes a count of zero, so that the map does not grow with every tenant it has seen. */
function add(counts: Map<string, number>, name: string, change: number): number {
  const count = (counts.get(name) ?? 0) + change
  if (count > 0) counts.set(name, count)
  else counts.delete(name)
  return count
}
