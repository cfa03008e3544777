import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { UnknownRequest } from '../../core/durable-store.ts'
import type { TurnCursors } from '../../core/turns.ts'
import { Round } from './round.ts'
import { forTable } from './sql.ts'
import {
  LONGEST_UNKNOWN,
  NEXT_UNKNOWN_NAME,
  NEXT_UNKNOWN_TENANT,
  NEXT_UNKNOWN_VERSION,
  UNKNOWN_OF_TENANT,
} from './turn-sql.ts'
import {
  walkInTurns,
  type DueKey,
  type ReachedKey,
  type WaitingKey,
  type Walked,
  type WalkedLane,
} from './turn-walk.ts'

/** What the turns go by: an operation on record, or that of the scope with an empty version. */
interface Group {
  readonly name: string
  readonly version: number | ''
}

export interface UnknownsFound {
  readonly isFound: boolean
  /** Nothing was found, and not everything was examined. */
  readonly isCut: boolean
}

/** Operations that one call goes through, where it does not take more than that. */
const GROUPS_MIN = 64

/** Unknown records that are due, in turns, over one connection. For use within a transaction. */
export class UnknownTurns {
  readonly #nextVersion: StatementSync
  readonly #nextName: StatementSync
  readonly #nextTenant: StatementSync
  readonly #ofTenant: StatementSync
  readonly #longest: StatementSync

  constructor(db: DatabaseSync, table: string) {
    const prepare = (sql: string) => db.prepare(forTable(table, sql))
    this.#nextVersion = prepare(NEXT_UNKNOWN_VERSION)
    this.#nextName = prepare(NEXT_UNKNOWN_NAME)
    this.#nextTenant = prepare(NEXT_UNKNOWN_TENANT)
    this.#ofTenant = prepare(UNKNOWN_OF_TENANT)
    this.#longest = prepare(LONGEST_UNKNOWN)
  }

  /** Whether a walk finds anything. Where some are left out, only a walk can tell. */
  finds(request: UnknownRequest, cursors: TurnCursors, nowMs: number): UnknownsFound {
    const isAnyDue = request.limit > 0 && this.#longest.get(nowMs, 1) !== undefined
    if (!isAnyDue || !leavesOut(request)) return { isFound: isAnyDue, isCut: false }
    const { keys, isCut, keep } = this.walk({ ...request, limit: 1 }, cursors, nowMs)
    const isFound = keys.length > 0
    if (!isFound) keep()
    return { isFound, isCut }
  }

  walk(request: UnknownRequest, cursors: TurnCursors, nowMs: number): Walked {
    const { limit, withoutTenants, withoutOperations = [] } = request
    const without = new Set(
      withoutOperations.map(({ name, version }) => keyOf({ name, version: version ?? '' })),
    )
    const round = this.#round(cursors.lastLane, Math.max(GROUPS_MIN, 2 * limit))
    const groups = [...round.places()].map((group) => ({ ...group, key: keyOf(group) }))
    const lanes = groups.filter(({ key }) => !without.has(key))
    return walkInTurns({
      lanes: lanes.map((group) => this.#laneOf(group, limit, nowMs)),
      cursors,
      limit,
      nowMs,
      withoutTenants,
      mustFind: leavesOut(request),
      moreBehind: round.isWhole ? undefined : groups.at(-1)?.key,
      longest: (count) =>
        toDue(this.#longest.all(nowMs, count)).filter(({ lane }) => !without.has(lane)),
    })
  }

  #round(start: string | undefined, leapsMax: number): Round<Group> {
    let leaps = leapsMax
    return new Round<Group>({
      start,
      next: (behind) => this.#nextGroup(behind),
      keyOf,
      mayLeap: () => leaps-- > 0,
    })
  }

  #nextGroup(behind: string | undefined): Group | undefined {
    if (behind === undefined) return this.#nextName.get('') as Group | undefined
    const { name, version } = groupOf(behind)
    const next = this.#nextVersion.get(name, version) ?? this.#nextName.get(name)
    return next as Group | undefined
  }

  #laneOf({ name, version }: Group, max: number, nowMs: number): WalkedLane {
    return {
      key: keyOf({ name, version }),
      max,
      next: (behind = '') => this.#nextTenant.get(name, version, behind) as ReachedKey | undefined,
      ofTenant: (tenant, limit) =>
        this.#ofTenant.all(name, version, tenant, nowMs, limit) as unknown as WaitingKey[],
    }
  }
}

function leavesOut({ withoutTenants = [], withoutOperations = [] }: UnknownRequest): boolean {
  return withoutTenants.length > 0 || withoutOperations.length > 0
}

function keyOf({ name, version }: Group): string {
  return JSON.stringify([name, version])
}

function groupOf(key: string): Group {
  const [name, version] = JSON.parse(key) as [string, number | '']
  return { name, version }
}

function toDue(rows: readonly unknown[]): DueKey[] {
  return (rows as readonly (WaitingKey & Group)[]).map((row) => ({ ...row, lane: keyOf(row) }))
}
