/**
 * Columns of the record table, and how values of every table are written into statements and read
 * from rows.
 *
 * Texts are sent as hexadecimal digits in both directions. So neither the character set of a
 * connection nor its `sql_mode` nor a conversion in the driver can change a byte of them.
 */
import { ValueFault } from '../kit/value-fault.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type { Row } from './client.ts'

export type Field = keyof StoredRecord

const COLUMNS: Readonly<Record<Field, Column>> = {
  identity: { name: 'identity', kind: 'hex' },
  recordId: { name: 'record_id', kind: 'word' },
  idSeed: { name: 'id_seed', kind: 'hex' },
  tenant: { name: 'tenant', kind: 'text', lengthMax: 255 },
  operation: { name: 'operation', kind: 'text', lengthMax: 1024 },
  key: { name: '`key`', kind: 'text', lengthMax: 1024 },
  fingerprint: { name: 'fingerprint', kind: 'text', lengthMax: 255 },
  state: { name: 'state', kind: 'word' },
  attempt: { name: 'attempt', kind: 'number' },
  lapses: { name: 'lapses', kind: 'number' },
  token: { name: 'token', kind: 'text', lengthMax: 32 },
  leaseUntilMs: { name: 'lease_until_ms', kind: 'number' },
  leaseMs: { name: 'lease_ms', kind: 'number' },
  onLapse: { name: 'on_lapse', kind: 'word' },
  afterExpiry: { name: 'after_expiry', kind: 'word' },
  refuseForMs: { name: 'refuse_for_ms', kind: 'number' },
  proof: { name: 'proof', kind: 'word' },
  recoveryPoint: { name: 'recovery_point', kind: 'text' },
  errorCode: { name: 'error_code', kind: 'text' },
  reconcileAtMs: { name: 'reconcile_at_ms', kind: 'number' },
  tries: { name: 'tries', kind: 'number' },
  createdAtMs: { name: 'created_at_ms', kind: 'number' },
  lastRunAtMs: { name: 'last_run_at_ms', kind: 'number' },
  completedAtMs: { name: 'completed_at_ms', kind: 'number' },
  expiresAtMs: { name: 'expires_at_ms', kind: 'number' },
  result: { name: 'result', kind: 'bytes' },
}

const FIELDS = Object.keys(COLUMNS) as readonly Field[]

/** All fields except the result, which may be large. */
export const VIEW: readonly Field[] = FIELDS.filter((field) => field !== 'result')

/** Fields that a settlement reads or changes, and those that the due time depends on. */
export const LEASE: readonly Field[] = [
  'identity',
  'state',
  'attempt',
  'token',
  'leaseUntilMs',
  'proof',
  'recoveryPoint',
  'errorCode',
  'reconcileAtMs',
  'tries',
  'lastRunAtMs',
  'completedAtMs',
  'expiresAtMs',
]

const NULL_AT_FIRST: readonly Field[] = [
  'proof',
  'recoveryPoint',
  'errorCode',
  'reconcileAtMs',
  'completedAtMs',
  'result',
]

/** Fields whose column has the value of the field. Only `idSeedSql` writes the seed. */
const PLAIN: readonly Field[] = FIELDS.filter((field) => field !== 'idSeed')

/** Plain fields of a new record. Columns of other plain fields are null. */
export const FRESH: readonly Field[] = PLAIN.filter((field) => !NULL_AT_FIRST.includes(field))

/** Fields in the history, which has no token and no lease, and in which every record is expired. */
export const KEPT: readonly Field[] = FIELDS.filter(
  (field) => field !== 'token' && field !== 'state' && field !== 'leaseMs',
)

export const nameOf = (field: Field): string => COLUMNS[field].name

/** Select expression for a field, from the table alias `r`. */
export const readSql = (field: Field): string =>
  field === 'leaseMs' ? LEASE_MS : readColumn(COLUMNS[field], 'r')

export const LEASE_FROM = 'lease_from_ms'

/**
 * A node of an older version claims and renews without writing these two columns. Then their sum is
 * not the end of the lease, and its length is unknown.
 */
const LEASE_MS = `CASE WHEN r.${LEASE_FROM} + r.lease_ms = r.lease_until_ms THEN r.lease_ms END`

/** Start of the lease, as SQL. */
export function leaseFromSql({ leaseUntilMs, leaseMs }: StoredRecord): string {
  return literalOf('leaseMs', leaseMs === undefined ? undefined : leaseUntilMs - leaseMs)
}

export const ID_SEED = COLUMNS.idSeed.name

/**
 * A node of an older version can give a row a new record id and leave `id_seed` and `refuse_for_ms`
 * as they are. So `id_seed` begins with the 16 bytes of the record id for which both were written,
 * also if there is no seed. With another record id, both count as absent.
 */
export function idSeedSql({ recordId, idSeed, refuseForMs }: StoredRecord): string {
  if (idSeed === undefined && refuseForMs === undefined) return 'NULL'
  const parts = [idDigits(recordId), ...(idSeed === undefined ? [] : [idSeed])]
  if (!parts.every(isIdentity)) throw new ValueFault(`${ID_SEED} cannot hold its value`)
  return `x'${parts.join('')}'`
}

const idDigits = (recordId: string) => recordId.replaceAll('-', '')

/**
 * Reads the fields of one row, in the order of `fields`. Other fields are `undefined`. CHECK
 * constraints guarantee valid words, so they are not validated again.
 */
export function toRecord(fields: readonly Field[], values: Row): StoredRecord {
  const record: Record<Field, unknown> = { ...NOTHING }
  for (const [n, field] of fields.entries()) record[field] = fromColumn(COLUMNS[field], values[n])
  return withOwnSeed(record as unknown as StoredRecord)
}

/** Reads what `idSeedSql` has written. */
function withOwnSeed(record: StoredRecord): StoredRecord {
  const { recordId, idSeed: written, refuseForMs } = record
  if (written === undefined && refuseForMs === undefined) return record
  const own = idDigits(recordId)
  if (written?.startsWith(own) !== true) {
    return { ...record, idSeed: undefined, refuseForMs: undefined }
  }
  const idSeed = written.slice(own.length)
  return { ...record, idSeed: idSeed === '' ? undefined : idSeed }
}

const NOTHING = Object.fromEntries(FIELDS.map((field) => [field, undefined])) as Record<
  Field,
  undefined
>

/** A value of a record field as SQL. Throws a `ValueFault` if the column cannot hold it exactly. */
export const literalOf = (field: Field, value: unknown): string => toColumn(COLUMNS[field], value)

/** Due time of a record that never becomes due. */
const NEVER_MS = Number.MAX_SAFE_INTEGER

/**
 * When a record is due for the sweep, the reaper, the reconciler or a worker. For an expired record
 * that is kept for ever it is the time of the last run. With this column one index serves all of
 * them: MySQL has no partial indexes.
 */
export function dueAtMs(record: StoredRecord): number {
  switch (record.state) {
    case 'in_progress':
      return record.leaseUntilMs
    case 'completed':
      return record.expiresAtMs
    case 'failed_retryable':
      return isToRun(record) ? (record.reconcileAtMs ?? NEVER_MS) : record.expiresAtMs
    case 'pending': {
      const { reconcileAtMs = NEVER_MS, expiresAtMs, attempt } = record
      if (!isToRun(record)) return expiresAtMs
      // An operation that has run never expires. Otherwise a worker or the reaper is due first.
      return attempt > 0 ? reconcileAtMs : Math.min(reconcileAtMs, expiresAtMs)
    }
    case 'unknown':
      return record.reconcileAtMs ?? NEVER_MS
    case 'expired':
      return record.reconcileAtMs ?? record.lastRunAtMs
  }
}

/**
 * Whether the record waits for a worker to resume its operation. The index separates these records
 * from those that only wait for their expiry, so that reapers and workers do not read past each
 * other's entries.
 */
export function isToRun({ state, recoveryPoint }: StoredRecord): boolean {
  return recoveryPoint !== undefined && (state === 'pending' || state === 'failed_retryable')
}

export const DUE = 'due_at_ms'
export const TO_RUN = 'to_run'
export const RUN_AS = 'run_as'

/** `run_as` of a record that has a recovery point but no operation. */
const NO_OPERATION = '1'

/**
 * `to_run` of an expired record that is kept for a time. No worker searches for this number. All
 * other expired records have 0, so the reaper reads none of those that are kept for ever, and none
 * that an older node has made `expired`.
 */
export const TO_REMOVE = 1

function toRunSql(record: StoredRecord): string {
  if (record.state === 'expired') return record.reconcileAtMs === undefined ? '0' : `${TO_REMOVE}`
  return isToRun(record) ? RUN_AS : '0'
}

/** How the fields of a row are written. */
export interface RowColumns<Name extends string> {
  readonly fields: readonly Name[]
  readonly nameOf: (field: Name) => string
  readonly literalOf: (field: Name, value: unknown) => string
}

/** Columns that differ, with their new values as SQL. */
export function changedColumns<Name extends string>(
  { fields, nameOf, literalOf }: RowColumns<Name>,
  before: Readonly<Record<Name, unknown>>,
  after: Readonly<Record<Name, unknown>>,
): Map<string, string> {
  const differing = fields.filter((field) => before[field] !== after[field])
  return new Map(differing.map((field) => [nameOf(field), literalOf(field, after[field])]))
}

/**
 * Whether the record stays and its operation is removed. Only a record with a recovery point has an
 * operation.
 */
export function isOperationOver(before: StoredRecord, after: StoredRecord): boolean {
  return before.recoveryPoint !== undefined && after.recoveryPoint === undefined
}

/** Columns of a record that differ, those that depend on others included. */
export function changesOf(before: StoredRecord, after: StoredRecord): Map<string, string> {
  const changes = changedColumns({ fields: PLAIN, nameOf, literalOf }, before, after)
  const set = (name: string, toSql: (record: StoredRecord) => string) => {
    const [old, sql] = [toSql(before), toSql(after)]
    if (old !== sql) changes.set(name, sql)
    return old !== sql
  }
  if (set(ID_SEED, idSeedSql)) {
    // A value that was written for an earlier record id must not become valid.
    changes.set(nameOf('refuseForMs'), literalOf('refuseForMs', after.refuseForMs))
  }
  set(LEASE_FROM, leaseFromSql)
  // A record that was read without its result does not differ from `after` in it.
  if (before.state === 'completed' && after.state !== 'completed') {
    changes.set(nameOf('result'), 'NULL')
  }
  set(DUE, (record) => literalOf('expiresAtMs', dueAtMs(record)))
  set(TO_RUN, toRunSql)
  if (before.recoveryPoint === undefined && after.recoveryPoint !== undefined) {
    setRunAs(changes, NO_OPERATION)
  }
  if (isOperationOver(before, after)) changes.set(RUN_AS, '0')
  return changes
}

/** Sets the number of the operation, which is known from its first step on. */
export function setRunAs(changes: Map<string, string>, number: string): void {
  changes.set(RUN_AS, number)
  // An assignment must not depend on another assignment of the same statement.
  if ((changes.get(TO_RUN) ?? '0') !== '0') changes.set(TO_RUN, number)
}

export type Kind = 'hex' | 'text' | 'word' | 'number' | 'bytes'

export interface Column {
  readonly name: string
  readonly kind: Kind
  /** Length of a text column, in characters. */
  readonly lengthMax?: number
}

/** Select expression for a column, from this table alias. */
export function readColumn({ name, kind }: Column, table: string): string {
  return kind === 'hex' || kind === 'text' ? `HEX(${table}.${name})` : `${table}.${name}`
}

/** Converts a value of a result row. */
export function fromColumn({ kind }: Column, value: unknown): unknown {
  return value === null || value === undefined ? undefined : READERS[kind](value)
}

const READERS: Readonly<Record<Kind, (value: unknown) => unknown>> = {
  hex: (value) => String(value).toLowerCase(),
  text: (value) => Buffer.from(String(value), 'hex').toString('utf8'),
  word: String,
  number: Number,
  bytes: (value) => toBytes(value as Uint8Array),
}

/** Stores return plain `Uint8Array`s, and the driver returns a `Buffer`. */
function toBytes({ buffer, byteOffset, byteLength }: Uint8Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

/** A value as SQL. Throws a `ValueFault` if the column cannot hold it exactly. */
export function toColumn(column: Column, value: unknown): string {
  if (value === undefined) return 'NULL'
  const sql = WRITERS[column.kind](value, column)
  if (sql === undefined) throw new ValueFault(`${column.name} cannot hold its value`)
  return sql
}

const WRITERS: Readonly<Record<Kind, (value: unknown, column: Column) => string | undefined>> = {
  hex: (value) => (isMatch(value, /^[0-9a-f]{32}$/) ? `x'${value}'` : undefined),
  // A lone surrogate would be written as U+FFFD, and two different keys would become one.
  text: (value, { lengthMax = Infinity }) =>
    typeof value === 'string' && value.length <= lengthMax && value.isWellFormed()
      ? `x'${Buffer.from(value, 'utf8').toString('hex')}'`
      : undefined,
  word: (value) => (isMatch(value, /^[0-9a-z_-]{1,36}$/) ? `'${value}'` : undefined),
  number: (value) => {
    const whole = Math.round(Number(value))
    return typeof value === 'number' && Number.isSafeInteger(whole) ? String(whole) : undefined
  },
  bytes: (value) =>
    value instanceof Uint8Array
      ? `x'${Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('hex')}'`
      : undefined,
}

function isMatch(value: unknown, pattern: RegExp): value is string {
  return typeof value === 'string' && pattern.test(value)
}

/** A number that belongs to no column, such as a limit or a duration. */
export function numberLiteral(name: string, value: number): string {
  return toColumn({ name, kind: 'number' }, value)
}

/** No record and no message has an id of another form. */
export function isUuid(text: string | undefined): text is string {
  return isMatch(text, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)
}

export function isIdentity(text: string | undefined): text is string {
  return isMatch(text, /^[0-9a-f]{32}$/)
}
