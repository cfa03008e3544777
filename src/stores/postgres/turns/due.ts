import type { DueQuery, OperationName } from '../../../core/store/durable-store.ts'
import { rotateBehind, TurnCursors } from '../../kit/turns.ts'
import type { Row, Value } from '../driver/driver.ts'
import { textArray } from '../driver/values.ts'
import { behind, laneOf, toWalk, WalkSkips, type Walk } from './walk.ts'

/** Remembers where the turns of due operations stopped. */
export class DueTurns {
  readonly #cursors = new TurnCursors()
  readonly #skips = new WalkSkips()

  /** Each operation once, beginning with the one that is next. */
  order(operations: readonly OperationName[]): OperationName[] {
    const lanes = new Map(operations.map((one) => [laneOf(one), one]))
    return rotateBehind([...lanes.values()], laneOf, this.#cursors.lastLane)
  }

  /** In the order of the parameters of the function. */
  values(operations: readonly OperationName[], { limit, withoutTenants = [] }: DueQuery): Value[] {
    const lanes = operations.map(laneOf)
    return [
      textArray(lanes.map((lane) => behind(this.#cursors.tenantOf(lane)))),
      `${this.#skips.needsWalk(lanes, withoutTenants)}`,
      limit,
      textArray(withoutTenants),
    ]
  }

  /** Remembers where a call stopped. Returns name, version and view of each record. */
  stop(operations: readonly OperationName[], rows: readonly Row[]): Walk {
    return toWalk(rows, ([kind, name, version, , , tenant]) => {
      if (kind === 'mixed') this.#skips.skipNext(operations.map(laneOf)[0])
      if (name === null) return
      const lane = laneOf({ name, version })
      if (kind === 'turn') this.#cursors.lastLane = lane
      else if (kind === 'cursor') this.#cursors.stopAt(lane, tenant ?? undefined)
    })
  }
}
