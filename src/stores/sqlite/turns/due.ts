/** Tests: test/stores/sqlite/turns/turns.test.ts. */
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { DueQuery, OperationName } from '../../../core/store/durable-store.ts'
import { rotateBehind, type TurnCursors } from '../../kit/turns.ts'
import { forTable } from '../sql.ts'
import { DUE_OF_TENANT, IS_DUE, LONGEST_DUE, NEXT_DUE_TENANT } from './sql.ts'
import {
  walkInTurns,
  type DueKey,
  type FirstOfTenant,
  type WaitingKey,
  type WalkResult,
  type Lane,
} from './walk.ts'

interface Operation extends OperationName {
  /** The key of its lane. */
  readonly key: string
}

/** Finds due operations in turns over one connection. For use within a transaction. */
export class DueTurns {
  readonly #isDue: StatementSync
  readonly #nextTenant: StatementSync
  readonly #ofTenant: StatementSync
  readonly #longest: StatementSync

  constructor(db: DatabaseSync, table: string) {
    const prepare = (sql: string) => db.prepare(forTable(table, sql))
    this.#isDue = prepare(IS_DUE)
    this.#nextTenant = prepare(NEXT_DUE_TENANT)
    this.#ofTenant = prepare(DUE_OF_TENANT)
    this.#longest = prepare(LONGEST_DUE)
  }

  walk(query: DueQuery, cursors: TurnCursors, nowMs: number): WalkResult {
    const { limit, withoutTenants } = query
    const due = operationsOf(query.operations).filter(
      ({ name, version }) => this.#isDue.get(name, version, nowMs) !== undefined,
    )
    const operations = rotateBehind(due, ({ key }) => key, cursors.lastLane)
    return walkInTurns({
      lanes: operations.map((operation) => this.#laneOf(operation, limit, nowMs)),
      cursors,
      limit,
      nowMs,
      withoutTenants,
      mustFind: withoutTenants !== undefined && withoutTenants.length > 0,
      longest: (count) => this.#longestOf(operations, count, nowMs),
    })
  }

  #laneOf({ key, name, version }: Operation, max: number, nowMs: number): Lane {
    return {
      key,
      max,
      next: (behind = '') =>
        this.#nextTenant.get(name, version, behind, nowMs) as FirstOfTenant | undefined,
      ofTenant: (tenant, limit) =>
        this.#ofTenant.all(name, version, nowMs, tenant, limit) as unknown as WaitingKey[],
    }
  }

  #longestOf(operations: readonly Operation[], limit: number, nowMs: number): DueKey[] {
    return operations
      .flatMap(({ key, name, version }) => {
        const keys = this.#longest.all(name, version, nowMs, limit) as unknown as WaitingKey[]
        return keys.map((one) => ({ ...one, lane: key }))
      })
      .toSorted((one, other) => one.due_at_ms - other.due_at_ms)
  }
}

/** The inverse of the lane key that `operationsOf` makes. */
export function operationOf(lane: string): OperationName {
  const [name, version] = JSON.parse(lane) as [string, number]
  return { name, version }
}

/** Without duplicates. */
function operationsOf(operations: readonly OperationName[]): Operation[] {
  const each = operations.map(({ name, version }) => {
    return { name, version, key: JSON.stringify([name, version]) }
  })
  return [...new Map(each.map((operation) => [operation.key, operation])).values()]
}
