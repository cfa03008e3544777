/**
 * The parts that the turns of due operations, unknown records and messages share. A lane is an
 * operation or a topic. A walk visits the tenants of a lane in their order, and the next call
 * continues with the tenant after the last one.
 */
import type { OperationName } from '../../../core/store/durable-store.ts'
import type { Row } from '../driver/driver.ts'

/** The start of a walk that continues after this tenant: no text sorts between the two. */
export function behind(tenant: string | undefined): string {
  return tenant === undefined ? '' : `${tenant}\u0001`
}

/**
 * Decides whether a call walks from tenant to tenant. A step to the next tenant costs as much as
 * five rows that are read in due order. So every second call skips the walk if the rows that have
 * been due longest belong to many tenants. It is never more than every second call: all of these
 * tenants may flood the lane, and a quiet tenant behind them is only found by a walk.
 */
export class WalkSkips {
  #skippedLane: string | undefined

  /** Must be called once for each call. */
  needsWalk(lanes: readonly string[], without: readonly string[]): boolean {
    if (lanes.length !== 1 || without.length > 0) return true
    const isSkipped = lanes[0] === this.#skippedLane
    this.#skippedLane = undefined
    return !isSkipped
  }

  /** The rows of this lane that are due longest belong to as many tenants as the call's limit. */
  skipNext(lane: string | undefined): void {
    this.#skippedLane = lane
  }
}

/** How many walks a call makes at most if they find nothing. */
const WALKS_MAX = 8

/** The result of one walk. */
export interface Walk {
  readonly rows: Row[]
  /** The walk found nothing and did not examine everything. */
  readonly isCut: boolean
}

/**
 * Walks until a row is found or everything was examined. Only a call that excludes tenants or
 * operations can be cut short: beside one excluded tenant that floods a lane, at least 4,000 other
 * tenants are left for the next walk. After eight walks, through 32,000 tenants, the result is
 * empty although rows may be due, and the next call continues there. Each walk is one statement
 * with 4,000 index lookups.
 */
export async function walkOn(walk: () => Promise<Walk>): Promise<Row[]> {
  let last = await walk()
  for (let walks = 1; last.isCut && walks < WALKS_MAX; walks++) last = await walk()
  return last.rows
}

type DueRow = readonly [kind: 'due', name: string, version: number, ...view: Row]

/**
 * A row about the walk itself. Without a name or a tenant, the next walk begins with the first.
 */
export type StopRow = readonly [
  kind: 'cursor' | 'turn' | 'mixed' | 'cut',
  name: string | null,
  version: number,
  identity: null,
  recordId: null,
  tenant: string | null,
]

/** The records that a walk found, without the column `kind`; `note` gets the other rows. */
export function toWalk(rows: readonly Row[], note: (row: StopRow) => void): Walk {
  const due: Row[] = []
  for (const row of rows as readonly (DueRow | StopRow)[]) {
    if (row[0] === 'due') due.push(row.slice(1))
    else note(row)
  }
  return { rows: due, isCut: rows.some(([kind]) => kind === 'cut') }
}

/** The key of an operation's lane, different for each pair of name and version. */
export function laneOf({ name, version }: OperationName): string {
  return `${version} ${name}`
}

/** Puts the key at the end of the map, and drops the least recently used key beyond `max`. */
export function remember<Item>(map: Map<string, Item>, key: string, item: Item, max: number): void {
  map.delete(key)
  map.set(key, item)
  if (map.size <= max) return
  const [oldest] = map.keys()
  if (oldest !== undefined) map.delete(oldest)
}
