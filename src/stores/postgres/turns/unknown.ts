import type { OperationName } from '../../../core/store/durable-store.ts'
import type { UnknownRequest } from '../../../core/store/operator-store.ts'
import type { Row, Value } from '../driver/driver.ts'
import { numberArray, textArray, textValue } from '../driver/values.ts'
import { NO_VERSION } from '../functions/turns.ts'
import { behind, laneOf, remember, toWalk, type Walk } from './walk.ts'

/** Operations with unknown records for which the store remembers the last tenant. */
const OPERATIONS_MAX = 256

/** Remembers where the turns of unknown records stopped. */
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

  /** Remembers where a call stopped. Returns the view of each record. */
  stop(rows: readonly Row[]): Walk {
    const walk = toWalk(rows, ([kind, name, version, , , tenant]) => {
      if (kind === 'turn') this.#last = name === null ? undefined : { name, version }
      if (kind !== 'cursor' || name === null) return
      const lane = laneOf({ name, version })
      if (tenant === null) this.#stops.delete(lane)
      else remember(this.#stops, lane, { name, version, tenant }, OPERATIONS_MAX)
    })
    return { ...walk, rows: walk.rows.map((row) => row.slice(2)) }
  }
}
