import { hash } from 'node:crypto'
import { epochMs, SEALED, VIEW_4 } from './functions/parts.ts'

/** A schema and a table whose names were checked. */
export interface TableName {
  readonly schema: string
  readonly table: string
}

/** Inserts the checked names for `{schema}` and `{table}`, which SQL has in double quotes. */
export function forTable({ schema, table }: TableName, sql: string): string {
  return sql
    .replaceAll('{channel}', channelOf({ schema, table }))
    .replaceAll('{schema}', schema)
    .replaceAll('{table}', table)
}

/** The NOTIFY channel of a table. A hash, because both names together may be too long. */
export function channelOf({ schema, table }: TableName): string {
  return preparedName(`${schema}.${table}`)
}

const preparedNames = new Map<string, string>()

/**
 * The name of a prepared statement is a hash of its text: two versions of the package, or two
 * tables, may share a connection, and one name with two texts is an error.
 */
export function preparedName(text: string): string {
  let name = preparedNames.get(text)
  if (name === undefined) {
    name = `oncekey_${hash('sha256', text, 'hex').slice(0, 24)}`
    preparedNames.set(text, name)
  }
  return name
}

/**
 * A call of a function that the migrations create. It names each column: a connection that has
 * prepared `select *` fails for ever after a migration adds a column. A value whose type a driver
 * would convert is cast by way of `text`.
 */
export const call = (
  name: string,
  types: readonly string[],
  columns: readonly string[],
): string => {
  return `SELECT ${columns.map((column) => `out_${column}`).join(', ')}
    FROM "{schema}"."{table}_${name}"(${valuesOf(types)})`
}

/** A call of a function that returns one text. */
function callForText(name: string, types: readonly string[]): string {
  return `SELECT "{schema}"."{table}_${name}"(${valuesOf(types)})`
}

const valuesOf = (types: readonly string[]) =>
  types.map((type, index) => `$${index + 1}::${type}`).join(', ')

const CLAIM_TYPES = [
  'text',
  'bytea',
  'uuid',
  'text',
  'text',
  'text',
  'text',
  'text',
  'float8',
  'float8',
  'text',
  'int',
  'text',
  'bytea',
  'float8',
]

const CLAIM_COLUMNS = [
  'identity',
  'how',
  'record_id',
  'state',
  'attempt',
  'own',
  'fingerprint',
  'recovery_point',
  'result',
  'lease_left_ms',
  'reconcile_in_ms',
  'expires_at_ms',
  'id_seed',
]

const arraysOf = (types: readonly string[]) => types.map((type) => `${type}[]`)

/** Drivers convert `bytea` values differently, so they are sent as `text`. */
const singlesOf = (types: readonly string[]) =>
  types.map((type) => (type === 'bytea' ? 'text::bytea' : type))

export const CLAIM = call(
  'claim_4',
  ['float8', 'text::bool', ...arraysOf(CLAIM_TYPES)],
  CLAIM_COLUMNS,
)

export const CLAIM_ONE = callForText('claim_one_4', [
  'float8',
  'text::bool',
  ...singlesOf(CLAIM_TYPES),
])

const SETTLE_TYPES = [
  'bytea',
  'text',
  'int',
  'text',
  'bytea',
  'text',
  'text',
  'float8',
  'float8',
  'float8',
]

const SETTLE_COLUMNS = ['identity', 'done', 'own', 'state', 'expires_at_ms']

export const SETTLE = call('settle', ['float8', ...arraysOf(SETTLE_TYPES)], SETTLE_COLUMNS)

export const SETTLE_ONE = callForText('settle_one', ['float8', ...singlesOf(SETTLE_TYPES)])

/** Called with literals, in a transaction that the caller has begun. */
export const SETTLE_IN = `coalesce("{schema}"."{table}_settle_one"({values}), 'absent')`

export const RENEW = call(
  'renew_2',
  ['float8', 'bytea[]', 'text[]', 'int[]', 'float8[]'],
  ['identity', 'how'],
)

/** The columns from which `columns.ts` builds a record. */
export const VIEW = [
  'identity',
  'record_id',
  'tenant',
  'operation',
  'key',
  'fingerprint',
  'state',
  'attempt',
  'lapses',
  'token',
  'on_lapse',
  'after_expiry',
  'proof',
  'recovery_point',
  'error_code',
  'lease_until_ms',
  'reconcile_at_ms',
  'tries',
  'created_at_ms',
  'last_run_at_ms',
  'completed_at_ms',
  'expires_at_ms',
  'id_seed',
  'refuse_for_ms',
]

export const RESOLVE = call(
  'resolve_4',
  ['float8', 'int[]', 'bytea[]', 'uuid[]', 'int[]', 'text[]', 'bytea[]', 'float8[]'],
  ['number', 'done', ...VIEW, 'result'],
)

export const SWEEP = call(
  'sweep_2',
  ['float8', 'int'],
  ['identity', 'record_id', 'tenant', 'operation', 'attempt', 'state'],
)

export const REAP = call(
  'reap_4',
  ['float8', 'int', 'text::bool', 'text::bytea', 'float8'],
  ['removed', 'expired', 'abandoned'],
)

export const LIST = call('list_4', ['text', 'int'], VIEW)

export const LIST_HISTORY = call('history_4', ['text::bytea', 'uuid', 'int'], [...VIEW, 'result'])

export const WATCH = call('watch', ['bytea[]'], ['identity', 'how'])

export const CLOCK = `SELECT ${epochMs('clock_timestamp()')}`

/** The records of look-ups, and the time at which they are judged. */
export const FIND_BATCH = call('find', ['float8', 'bytea[]'], [...VIEW, 'result', 'now_ms'])

/** Takes no lock and waits for no lock. */
export const FIND = `
  SELECT ${VIEW_4.columns}, r.result
  FROM "{schema}"."{table}" r WHERE r.identity = decode($1::text, 'hex')`

export const FIND_BY_RECORD_ID = `
  SELECT ${VIEW_4.columns}, r.result FROM "{schema}"."{table}" r WHERE r.record_id = $1::uuid`

/**
 * The statements that open a transaction with the caller's work; sent together with BEGIN.
 *
 * The seal is set twice: as a savepoint and as a setting of the transaction. If it is missing after
 * the work, the work has ended the transaction, even if another one has begun since. The SELECT
 * takes no lock, so that duplicates are still answered.
 */
export const OPENING = `SAVEPOINT oncekey_seal; SET LOCAL ${SEALED} = 'yes';
  SELECT ${VIEW_4.columns} FROM "{schema}"."{table}" r
  WHERE r.identity = decode('{identity}', 'hex')`

/** Sent after work that returned. */
export const RELEASE_SEAL = 'RELEASE SAVEPOINT oncekey_seal'

/** Sent after work that threw. It also works in a transaction that an error has aborted. */
export const ROLL_BACK_TO_SEAL = 'ROLLBACK TO SAVEPOINT oncekey_seal'

/** The payload of a notification that only checks the connection that listens. */
export const CHECK = 'check'

export const NOTIFY_CHECK = `SELECT pg_notify('{channel}', '${CHECK}')`
