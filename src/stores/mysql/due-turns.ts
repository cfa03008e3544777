/** Which operations are due, in the turns of their operations and tenants. */
import type { DueOperation, DueQuery } from '../../core/durable-store.ts'
import { rotateBehind } from '../../core/turns.ts'
import type { Session } from './driver.ts'
import { DueLook } from './due-look.ts'
import { numbersOf } from './phase-sql.ts'
import { chooseInTurns, laneKey, tenantKeys, type RecordLane } from './record-turns.ts'
import type { Inside } from './settlement.ts'
import { TurnMemory } from './turn-memory.ts'
import { TurnWalk } from './turn-walk.ts'

export class DueTurns {
  readonly #inside: () => Inside
  readonly #memory = new TurnMemory()
  /** There was more than could be handed out: the next look leaps at once. */
  #isBehind = false

  constructor(inside: () => Inside) {
    this.#inside = inside
  }

  async find(session: Session, query: DueQuery): Promise<DueOperation[]> {
    const { limit, operations } = query
    if (limit < 1 || operations.length === 0) return []
    const wanted = { limit, without: tenantKeys(query.withoutTenants) }
    const lanes = this.#lanes(query)
    const look = new DueLook(session, this.#inside(), { operations, wanted, lanes })
    const isAll = await look.fill(this.#isBehind)
    this.#isBehind = !isAll
    if (!isAll) await look.walk()
    return look.give(chooseInTurns(lanes, wanted, this.#memory))
  }

  #lanes({ operations }: DueQuery): RecordLane[] {
    const lanes = numbersOf(operations).map((number): RecordLane => {
      return { number, walk: new TurnWalk(this.#memory.of(String(number))) }
    })
    return rotateBehind(lanes, laneKey, this.#memory.lastLane)
  }
}
