/**
 * What the turns of tenants need in the tables.
 *
 * An index on records must not cost a write with each claim and each completion, and none can be
 * partial. So these columns are NULL for all records but those that wait for a worker or for a
 * reconciler, and an entry of NULLs stays where it is. They are computed from the columns that
 * nodes of every version write, and stored nowhere but in the index.
 *
 * `turn_of` is `to_run` for what waits for a worker. Unknown records come after all of those: first
 * the ones with an operation on record, then the others, by the operation of their scope. Two
 * operations with the same number share their turns.
 *
 * Messages without a partition are in their index while they have a place in the empty lane.
 * Partitions have the tenant of the message that was added last, and when that was; a node of the
 * first version leaves both as they are. No turn depends on the tenant alone, for the head of a
 * partition says whose it is. The time only spares partitions in use from being pruned.
 */
const IS_WAITING = `to_run > 1 OR state = _ascii'unknown'`
const IS_FREE = `lane = _binary''`

/** Numbers of unknown records with an operation on record begin here, and of the others there. */
export const UNKNOWN_RUN = 2 ** 32
export const UNKNOWN_SCOPE = 2 ** 33

export const TURN_STATEMENTS: readonly string[] = [
  `
ALTER TABLE {record}
  ADD COLUMN /*M! IF NOT EXISTS */ turn_of BIGINT UNSIGNED AS (
    CASE WHEN to_run > 1 THEN to_run
      WHEN state = _ascii'unknown' AND run_as > 1 THEN ${UNKNOWN_RUN} + run_as
      WHEN state = _ascii'unknown' THEN ${UNKNOWN_SCOPE} + CRC32(operation) END) VIRTUAL,
  ADD COLUMN /*M! IF NOT EXISTS */ turn_tenant VARBINARY(1020) AS (
    CASE WHEN ${IS_WAITING} THEN CAST(tenant AS BINARY) END) VIRTUAL,
  ADD COLUMN /*M! IF NOT EXISTS */ turn_at_ms BIGINT AS (
    CASE WHEN ${IS_WAITING} THEN due_at_ms END) VIRTUAL,
  ALGORITHM = INSTANT`,
  `
ALTER TABLE {record}
  ADD INDEX /*M! IF NOT EXISTS */ turn (turn_of, turn_tenant, turn_at_ms),
  ALGORITHM = INPLACE, LOCK = NONE`,
  `
ALTER TABLE {message}
  ADD COLUMN /*M! IF NOT EXISTS */ tenant VARBINARY(765), ALGORITHM = INSTANT`,
  `
ALTER TABLE {message}
  ADD COLUMN /*M! IF NOT EXISTS */ turn_tenant VARBINARY(765) AS (
    CASE WHEN ${IS_FREE} THEN COALESCE(tenant, _binary'') END) VIRTUAL,
  ADD COLUMN /*M! IF NOT EXISTS */ turn_at_ms BIGINT AS (
    CASE WHEN ${IS_FREE} THEN place END) VIRTUAL,
  ALGORITHM = INSTANT`,
  `
ALTER TABLE {message}
  ADD INDEX /*M! IF NOT EXISTS */ turn (topic, turn_tenant, turn_at_ms, added_at_us),
  ALGORITHM = INPLACE, LOCK = NONE`,
  `
ALTER TABLE {partition}
  ADD COLUMN /*M! IF NOT EXISTS */ tenant VARBINARY(765),
  ADD COLUMN /*M! IF NOT EXISTS */ used_at_ms BIGINT, ALGORITHM = INSTANT`,
  `
ALTER TABLE {partition}
  ADD COLUMN /*M! IF NOT EXISTS */ turn_tenant VARBINARY(765) AS (
    CASE WHEN is_open = 1 THEN COALESCE(tenant, _binary'') END) VIRTUAL,
  ALGORITHM = INSTANT`,
  `
ALTER TABLE {partition}
  ADD INDEX /*M! IF NOT EXISTS */ turn (topic, turn_tenant, lane),
  ALGORITHM = INPLACE, LOCK = NONE`,
]
