import { epochMs, SEALED, VIEW_COLUMNS } from './function-parts.ts'
import { preparedName } from './prepared-name.ts'

/** A table by its checked names. */
export interface TableName {
  readonly schema: string
  readonly table: string
}

/** `{schema}` and `{table}` are checked names; in SQL they stand between double quotes. */
export function forTable({ schema, table }: TableName, sql: string): string {
  return sql
    .replaceAll('{channel}', channelOf({ schema, table }))
    .replaceAll('{schema}', schema)
    .replaceAll('{table}', table)
}

/** Where those who wait hear of a table's records. A hash: both names together may be too long. */
export function channelOf({ schema, table }: TableName): string {
  return preparedName(`${schema}.${table}`)
}

/**
 * One call of a function of the migrations, its columns listed one by one: a connection that has
 * prepared `select *` fails for ever once a migration adds a column. By way of `text` where a
 * driver has ideas of its own about a type.
 */
export const call = (
  name: string,
  types: readonly string[],
  columns: readonly string[],
): string => {
  return `SELECT ${columns.map((column) => `out_${column}`).join(', ')}
    FROM "{schema}"."{table}_${name}"(${valuesOf(types)})`
}

/** The same of a function that answers with a text. */
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
]

const arraysOf = (types: readonly string[]) => types.map((type) => `${type}[]`)

/** Drivers have ideas of their own about bytes. */
const singlesOf = (types: readonly string[]) =>
  types.map((type) => (type === 'bytea' ? 'text::bytea' : type))

export const CLAIM = call(
  'claim_2',
  ['float8', 'text::bool', ...arraysOf(CLAIM_TYPES)],
  CLAIM_COLUMNS,
)

export const CLAIM_ONE = callForText('claim_one_2', [
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

export const RENEW = call(
  'renew_2',
  ['float8', 'bytea[]', 'text[]', 'int[]', 'float8[]'],
  ['identity', 'how'],
)

/** What `rows.ts` makes a record of. */
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
]

export const RESOLVE = call(
  'resolve',
  ['float8', 'int[]', 'bytea[]', 'uuid[]', 'int[]', 'text[]', 'bytea[]', 'float8[]'],
  ['number', 'done', ...VIEW, 'result'],
)

export const SWEEP = call(
  'sweep_2',
  ['float8', 'int'],
  ['identity', 'record_id', 'tenant', 'operation', 'attempt', 'state'],
)

export const REAP = call(
  'reap',
  ['float8', 'int', 'text::bool', 'text::bytea', 'float8'],
  ['removed', 'expired', 'abandoned'],
)

export const LIST = call('list', ['text', 'int'], VIEW)

export const LIST_HISTORY = call('history', ['text::bytea', 'uuid', 'int'], [...VIEW, 'result'])

export const WATCH = call('watch', ['bytea[]'], ['identity', 'how'])

export const CLOCK = `SELECT ${epochMs('clock_timestamp()')}`

/** Waits for nobody, and nobody waits for it. */
export const FIND = `
  SELECT ${VIEW_COLUMNS}, r.result
  FROM "{schema}"."{table}" r WHERE r.identity = decode($1::text, 'hex')`

export const FIND_BY_RECORD_ID = `
  SELECT ${VIEW_COLUMNS}, r.result FROM "{schema}"."{table}" r WHERE r.record_id = $1::uuid`

/**
 * How a transaction with work of the caller's begins; sent together with BEGIN.
 *
 * The seal is set around the work, twice: as a savepoint and as a setting of the transaction. If it
 * is gone afterwards, the transaction has ended under the work, even where another one has begun
 * since. The question locks nothing: duplicates must get through.
 */
export const OPENING = `SAVEPOINT oncekey_seal; SET LOCAL ${SEALED} = 'yes';
  SELECT ${VIEW_COLUMNS} FROM "{schema}"."{table}" r WHERE r.identity = decode('{identity}', 'hex')`

/** For work that returned. */
export const RELEASE_SEAL = 'RELEASE SAVEPOINT oncekey_seal'

/** For work that threw: it also works in a transaction that an error has aborted. */
export const ROLL_BACK_TO_SEAL = 'ROLLBACK TO SAVEPOINT oncekey_seal'

/** A notification that only shows that the connection which listens is alive. */
export const CHECK = 'check'

export const NOTIFY_CHECK = `SELECT pg_notify('{channel}', '${CHECK}')`
