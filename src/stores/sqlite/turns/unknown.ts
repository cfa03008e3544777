/** Tests: test/stores/sqlite/turns/turns.test.ts. */
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { UnknownRequest } from '../../../core/store/operator-store.ts'
import type { TurnCursors } from '../../kit/turns.ts'
import { forTable } from '../sql.ts'
import {
  LONGEST_UNKNOWN,
  NEXT_UNKNOWN_NAME,
  NEXT_UNKNOWN_TENANT,
  NEXT_UNKNOWN_VERSION,
  UNKNOWN_OF_TENANT,
} from './sql.ts'
import {
  Round,
  walkInTurns,
  type DueKey,
  type FirstOfTenant,
  type WaitingKey,
  type WalkResult,
  type Lane,
} from './walk.ts'

/** A lane: a stored operation with its version, or a scope's operation with an empty version. */
interface Group {
  readonly name: string
  readonly version: number | ''
}

export interface UnknownSearch {
  readonly isFound: boolean
  /** Nothing was found, but not everything was examined. */
  readonly isCut: boolean
}

/** How many operations one call visits at least; with a higher limit, twice the limit. */
const GROUPS_MIN = 64

/** Finds due unknown records in turns over one connection. For use within a transaction. */
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

  /** Whether a walk finds a record. If some are excluded, the answer needs a walk. */
  search(request: UnknownRequest, cursors: TurnCursors, nowMs: number): UnknownSearch {
    const isAnyDue = request.limit > 0 && this.#longest.get(nowMs, 1) !== undefined
    if (!isAnyDue || !isFiltered(request)) return { isFound: isAnyDue, isCut: false }
    const { keys, isCut, saveCursors } = this.walk({ ...request, limit: 1 }, cursors, nowMs)
    const isFound = keys.length > 0
    if (!isFound) saveCursors()
    return { isFound, isCut }
  }

  walk(request: UnknownRequest, cursors: TurnCursors, nowMs: number): WalkResult {
    const { limit, withoutTenants, withoutOperations = [] } = request
    const without = new Set(
      withoutOperations.map(({ name, version }) => keyOf({ name, version: version ?? '' })),
    )
    const round = this.#round(cursors.lastLane, Math.max(GROUPS_MIN, 2 * limit))
    const groups = [...round.entries()].map((group) => ({ ...group, key: keyOf(group) }))
    const lanes = groups.filter(({ key }) => !without.has(key))
    return walkInTurns({
      lanes: lanes.map((group) => this.#laneOf(group, limit, nowMs)),
      cursors,
      limit,
      nowMs,
      withoutTenants,
      mustFind: isFiltered(request),
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

  #laneOf({ name, version }: Group, max: number, nowMs: number): Lane {
    return {
      key: keyOf({ name, version }),
      max,
      next: (behind = '') =>
        this.#nextTenant.get(name, version, behind) as FirstOfTenant | undefined,
      ofTenant: (tenant, limit) =>
        this.#ofTenant.all(name, version, tenant, nowMs, limit) as unknown as WaitingKey[],
    }
  }
}

function isFiltered({ withoutTenants = [], withoutOperations = [] }: UnknownRequest): boolean {
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
