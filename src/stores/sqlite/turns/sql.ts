/**
 * Statements that find due work in turns. Each uses an index over operation or topic, tenant and
 * due time: a query for the next tenant leaps past the backlog of the tenants before it, to the
 * longest due entry of the next. The chosen rows are read at the end, in one statement.
 *
 * Limits are written as sums (`LIMIT 0 + ?`): for a bare parameter, SQLite uses the bound value to
 * plan the statement and plans again for every new value, which takes longer than a walk.
 */
import { MAY_BE_TAKEN, WAITS_TO_RUN } from '../durable/phase-sql.ts'

const DUE_LANE = `${WAITS_TO_RUN} AND run_name = ?1 AND run_version = ?2`

/** Whether a walk is needed. Uses the index without tenants: their number costs nothing. */
export const IS_DUE = `
  SELECT 1 FROM "{table}" INDEXED BY "{table}_due"
  WHERE ${DUE_LANE} AND reconcile_at_ms <= ?3 AND ${MAY_BE_TAKEN} LIMIT 1`

/** The columns that a walk reads of a record. */
const KEY = 'rowid AS number, tenant, reconcile_at_ms AS due_at_ms'

/** No record has an empty tenant, so all tenants are greater than ''. */
export const NEXT_DUE_TENANT = `
  SELECT ${KEY}, (state <> 'pending' OR expires_at_ms > ?4 OR attempt > 0) AS is_free
  FROM "{table}" INDEXED BY "{table}_due_turn"
  WHERE ${DUE_LANE} AND tenant > ?3 ORDER BY tenant, reconcile_at_ms LIMIT 1`

export const DUE_OF_TENANT = `
  SELECT ${KEY} FROM "{table}" INDEXED BY "{table}_due_turn"
  WHERE ${DUE_LANE} AND tenant = ?4 AND reconcile_at_ms <= ?3 AND ${MAY_BE_TAKEN}
  ORDER BY reconcile_at_ms LIMIT 0 + ?5`

export const LONGEST_DUE = `
  SELECT ${KEY} FROM "{table}" INDEXED BY "{table}_due"
  WHERE ${DUE_LANE} AND reconcile_at_ms <= ?3 AND ${MAY_BE_TAKEN}
  ORDER BY reconcile_at_ms LIMIT 0 + ?4`

/** The exact expressions of the index. Versions are numbers, so '' marks a scope's operation. */
const UNKNOWN_NAME = 'coalesce(run_name, operation)'
const UNKNOWN_VERSION = "ifnull(run_version, '')"
const IS_UNKNOWN = `state = 'unknown' AND reconcile_at_ms IS NOT NULL`
const UNKNOWN_LANE = `${IS_UNKNOWN} AND ${UNKNOWN_NAME} = ?1 AND ${UNKNOWN_VERSION} = ?2`

/** Two statements, for the reason given at `NEXT_VERSION` in `../durable/phase-sql.ts`. */
export const NEXT_UNKNOWN_VERSION = nextUnknown(
  `${UNKNOWN_NAME} = ? AND ${UNKNOWN_VERSION} > ?`,
  UNKNOWN_VERSION,
)

export const NEXT_UNKNOWN_NAME = nextUnknown(
  `${UNKNOWN_NAME} > ?`,
  `${UNKNOWN_NAME}, ${UNKNOWN_VERSION}`,
)

function nextUnknown(isNext: string, order: string): string {
  return `
  SELECT ${UNKNOWN_NAME} AS name, ${UNKNOWN_VERSION} AS version
  FROM "{table}" INDEXED BY "{table}_unknown_turn" WHERE ${IS_UNKNOWN} AND ${isNext}
  ORDER BY ${order} LIMIT 1`
}

export const NEXT_UNKNOWN_TENANT = `
  SELECT ${KEY} FROM "{table}" INDEXED BY "{table}_unknown_turn"
  WHERE ${UNKNOWN_LANE} AND tenant > ?3 ORDER BY tenant, reconcile_at_ms LIMIT 1`

export const UNKNOWN_OF_TENANT = `
  SELECT ${KEY} FROM "{table}" INDEXED BY "{table}_unknown_turn"
  WHERE ${UNKNOWN_LANE} AND tenant = ?3 AND reconcile_at_ms <= ?4
  ORDER BY reconcile_at_ms LIMIT 0 + ?5`

/** Records that only an operator may resolve have no due time, so they are not found. */
export const LONGEST_UNKNOWN = `
  SELECT ${KEY}, ${UNKNOWN_NAME} AS name, ${UNKNOWN_VERSION} AS version
  FROM "{table}" INDEXED BY "{table}_unknown"
  WHERE ${IS_UNKNOWN} AND reconcile_at_ms <= ? ORDER BY reconcile_at_ms LIMIT 0 + ?`

/** All messages without a tenant share one turn. */
const MESSAGE_TENANT = "ifnull(tenant, '')"
const MESSAGE_LANE = 'topic = ?1 AND is_head = 1 AND due_at_ms IS NOT NULL'

export const FIRST_MESSAGE_TENANT = nextMessageTenant('')

export const NEXT_MESSAGE_TENANT = nextMessageTenant(`AND ${MESSAGE_TENANT} > ?2`)

function nextMessageTenant(isNext: string): string {
  return `
  SELECT number, ${MESSAGE_TENANT} AS tenant, due_at_ms
  FROM "{table}_message" INDEXED BY "{table}_message_turn" WHERE ${MESSAGE_LANE} ${isNext}
  ORDER BY ${MESSAGE_TENANT}, due_at_ms, number LIMIT 1`
}

export const MESSAGES_OF_TENANT = `
  SELECT number, ${MESSAGE_TENANT} AS tenant, due_at_ms
  FROM "{table}_message" INDEXED BY "{table}_message_turn"
  WHERE ${MESSAGE_LANE} AND ${MESSAGE_TENANT} = ?2 AND due_at_ms <= ?3
  ORDER BY due_at_ms, number LIMIT 0 + ?4`

/** Reads the row of each message for its tenant, so it runs only when the turns find too few. */
export const LONGEST_DUE_MESSAGES = `
  SELECT number, ${MESSAGE_TENANT} AS tenant, due_at_ms
  FROM "{table}_message" INDEXED BY "{table}_message_due"
  WHERE ${MESSAGE_LANE} AND due_at_ms <= ?2 ORDER BY due_at_ms, number LIMIT 0 + ?3`
