/** Partitions in which no message has a place: they are closed, and pruned once they are idle. */
import type { Row } from './client.ts'
import { transact, type Session } from './driver.ts'
import { emptyLanesSql, lockLanesSql, type Lanes } from './partition-sql.ts'
import type { Inside } from './settlement.ts'
import type { Tables } from './sql.ts'

export interface EmptyLanes extends Lanes {
  /** Another condition that they must meet, as SQL. */
  readonly isIdle?: string | undefined
  readonly toSql: (tables: Tables, empty: Lanes) => string
}

/**
 * Writes to those that are empty, under the locks of their counters. A transaction that adds a
 * message has that lock until it commits, so what is empty stays empty. A counter that is locked is
 * skipped, because it is in use.
 */
export function withEmptyLanes(
  session: Session,
  { tables }: Inside,
  { topic, lanes, isIdle, toSql }: EmptyLanes,
): Promise<number> {
  return transact(session, async () => {
    const locked = toLanes(await session.rows(lockLanesSql(tables, { topic, lanes })))
    if (locked.length === 0) return 0
    const sql = emptyLanesSql(tables, { topic, lanes: locked, isIdle })
    const empty = toLanes(await session.rows(sql))
    if (empty.length > 0) await session.run(toSql(tables, { topic, lanes: empty }))
    return empty.length
  })
}

function toLanes(rows: readonly Row[]): string[] {
  return rows.map(([lane]) => Buffer.from(String(lane), 'hex').toString('utf8'))
}
