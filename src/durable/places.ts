import type { Clock } from '../core/clock.ts'
import type { EventListener } from '../core/events.ts'
import { notePaused, type PausedWork, type WorkPart } from '../core/paused-work.ts'
import type { Store } from '../core/store.ts'

/** What a piece of work is counted by. */
export interface Lane {
  /** The name of its operation, or its topic. */
  readonly group: string
  readonly tenant: string
}

export interface PlacesOptions {
  readonly part: WorkPart
  readonly clock: Clock
  readonly store: Store
  readonly emit: EventListener
  /** Places for any work. */
  readonly places: number
  /** Places of one group, and of one tenant, at the most. */
  readonly perGroup: number
  readonly perTenant: number
  /** Further places, for tenants and for groups that have none. */
  readonly reserve: number
  /** Overdue calls of one group from which on the group is paused. */
  readonly overdueMax: number
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
  /** The work has ended. */
  end(): void
  /**
   * The work runs on although its time limit is over: the place is free for other work, and the
   * work counts as overdue until `end`. `subject` is the id of its record or message.
   */
  overdue(subject: string): void
}

export interface PlacesStats {
  /** Places that are taken. */
  readonly running: number
  /** Calls that run on although their time limit is over. */
  readonly overdue: number
  /** Groups of which nothing is begun, because too many of their calls are overdue. */
  readonly paused: readonly PausedWork[]
}

/** Code that obeys its signal ends within this time, and is not worth an event. */
const OBEYS_WITHIN_MS = 1_000

/**
 * Divides the places of a worker, a relay or a reconciler, so that one operation, topic or tenant
 * cannot hold them all.
 *
 * Any work may use the ordinary places, so a single tenant loses nothing by the division. Once they
 * are taken, half of the reserve is left for tenants that have no place, and the rest for groups
 * that have no place. The halves are counted apart: many operations of one tenant do not fill what
 * is left for other tenants. Work that ignores its time limit gives its place back and is counted.
 * Where too much of one group does so, the group is paused, because each such call keeps its memory
 * and its connections.
 */
export class Places {
  readonly #options: PlacesOptions
  readonly #groups = new Map<string, number>()
  readonly #tenants = new Map<string, number>()
  readonly #overdue = new Map<string, number>()
  /** Groups that were told to be paused, and what ends that note. */
  readonly #toldPaused = new Map<string, () => void>()
  /** For calls that have just become overdue: each tells of it, unless it is cancelled. */
  readonly #timers = new Set<() => void>()
  /** Places that are taken. */
  readonly #taken: Record<Pool, number> = { ordinary: 0, tenants: 0, groups: 0 }
  readonly #sizes: Readonly<Record<Pool, number>>

  constructor(options: PlacesOptions) {
    this.#options = options
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

  /** Takes a place; `undefined` where this work may not begin now. */
  take(lane: Lane): TakenPlace | undefined {
    const pool = this.#poolFor(lane)
    if (pool === undefined) return undefined
    this.#taken[pool]++
    add(this.#groups, lane.group, 1)
    add(this.#tenants, lane.tenant, 1)
    let state: 'running' | 'overdue' | 'ended' = 'running'
    let endOverdue: () => void = () => undefined
    return {
      end: () => {
        if (state === 'running') this.#leave(lane, pool)
        if (state === 'overdue') endOverdue()
        state = 'ended'
      },
      overdue: (subject) => {
        if (state !== 'running') return
        state = 'overdue'
        this.#leave(lane, pool)
        endOverdue = this.countOverdue(lane.group, subject)
      },
    }
  }

  mayTake(lane: Lane): boolean {
    return this.#poolFor(lane) !== undefined
  }

  #poolFor({ group, tenant }: Lane): Pool | undefined {
    const ofTenant = this.ofTenant(tenant)
    if (!this.#isOpen(group) || ofTenant >= this.#options.perTenant) return undefined
    if (this.free > 0) return 'ordinary'
    if (ofTenant === 0 && this.#freeIn('tenants') > 0) return 'tenants'
    return !this.#groups.has(group) && this.#freeIn('groups') > 0 ? 'groups' : undefined
  }

  /** Nothing of this group is begun, because too many of its calls are overdue. */
  isPaused(group: string): boolean {
    return (this.#overdue.get(group) ?? 0) >= this.#options.overdueMax
  }

  /** Counts a call that runs on although its time limit is over. Returns what ends that. */
  countOverdue(group: string, subject: string): () => void {
    const { clock } = this.#options
    add(this.#overdue, group, 1)
    const tell = () => {
      this.#timers.delete(cancel)
      this.#tellOverdue(group, subject)
    }
    const cancel = clock.after(OBEYS_WITHIN_MS, tell, { background: true })
    this.#timers.add(cancel)
    let isOver = false
    return () => {
      if (isOver) return
      isOver = true
      this.#timers.delete(cancel)
      cancel()
      add(this.#overdue, group, -1)
      if (!this.isPaused(group)) this.#tellResumed(group)
    }
  }

  /** Tells nothing more of what is overdue now: its owner is closed. */
  stop(): void {
    for (const cancel of this.#timers) cancel()
    this.#timers.clear()
  }

  stats(): PlacesStats {
    const { part } = this.#options
    const overdue = [...this.#overdue]
    return {
      running: this.running,
      overdue: overdue.reduce((sum, [, count]) => sum + count, 0),
      paused: overdue
        .filter(([name]) => this.isPaused(name))
        .map(([name, count]) => ({ part, name, overdue: count })),
    }
  }

  #freeIn(pool: Pool): number {
    return this.#sizes[pool] - this.#taken[pool]
  }

  #open(groups: readonly string[]): string[] {
    return groups.filter((group) => this.#isOpen(group))
  }

  #isOpen(group: string): boolean {
    const { perGroup } = this.#options
    return !this.isPaused(group) && this.ofGroup(group) < perGroup
  }

  #leave({ group, tenant }: Lane, pool: Pool): void {
    this.#taken[pool]--
    add(this.#groups, group, -1)
    add(this.#tenants, tenant, -1)
  }

  #tellOverdue(name: string, subject: string): void {
    const { part, store, emit } = this.#options
    const overdue = this.#overdue.get(name) ?? 0
    emit({ kind: 'work_overdue', part, name, subject, overdue })
    if (!this.isPaused(name) || this.#toldPaused.has(name)) return
    this.#toldPaused.set(name, notePaused(store, { part, name, overdue }))
    emit({ kind: 'work_paused', part, name, overdue })
  }

  #tellResumed(name: string): void {
    const unnote = this.#toldPaused.get(name)
    if (unnote === undefined) return
    const { part, emit } = this.#options
    this.#toldPaused.delete(name)
    unnote()
    emit({ kind: 'work_resumed', part, name })
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
