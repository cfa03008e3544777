/**
 * The record as columns: how each field is read and how it is written, in one table.
 *
 * Texts travel as hexadecimal digits in both directions. So neither the character set of a
 * connection nor its `sql_mode` nor a driver's own conversions can change a single byte of them.
 */
import type { StoredRecord } from '../../core/record.ts'
import type { Row } from './client.ts'

type Kind = 'hex' | 'text' | 'word' | 'number' | 'bytes'

export type Field = keyof StoredRecord

interface Column {
  readonly name: string
  readonly kind: Kind
  /** Texts: how long the column is, in characters. */
  readonly lengthMax?: number
}

const COLUMNS: Readonly<Record<Field, Column>> = {
  identity: { name: 'identity', kind: 'hex' },
  recordId: { name: 'record_id', kind: 'word' },
  tenant: { name: 'tenant', kind: 'text', lengthMax: 255 },
  operation: { name: 'operation', kind: 'text', lengthMax: 1024 },
  key: { name: '`key`', kind: 'text', lengthMax: 1024 },
  fingerprint: { name: 'fingerprint', kind: 'text', lengthMax: 255 },
  state: { name: 'state', kind: 'word' },
  attempt: { name: 'attempt', kind: 'number' },
  lapses: { name: 'lapses', kind: 'number' },
  token: { name: 'token', kind: 'text', lengthMax: 32 },
  leaseUntilMs: { name: 'lease_until_ms', kind: 'number' },
  onLapse: { name: 'on_lapse', kind: 'word' },
  afterExpiry: { name: 'after_expiry', kind: 'word' },
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

/** Everything but the result, which may be large. */
export const VIEW: readonly Field[] = FIELDS.filter((field) => field !== 'result')

/** What a settlement looks at and may change, and what the due time is made from. */
export const LEASE: readonly Field[] = [
  'identity',
  'state',
  'attempt',
  'token',
  'leaseUntilMs',
  'proof',
  'errorCode',
  'reconcileAtMs',
  'tries',
  'lastRunAtMs',
  'completedAtMs',
  'expiresAtMs',
]

/** What a fresh record has; the other columns are null. */
export const FRESH: readonly Field[] = FIELDS.filter(
  (field) =>
    !['proof', 'recoveryPoint', 'errorCode', 'reconcileAtMs', 'completedAtMs', 'result'].includes(
      field,
    ),
)

/** What the history keeps: it knows no token, and its state is always `expired`. */
export const KEPT: readonly Field[] = FIELDS.filter(
  (field) => field !== 'token' && field !== 'state',
)

export const nameOf = (field: Field): string => COLUMNS[field].name

/** How a column is read from the table that is called `r`. */
export function readSql(field: Field): string {
  const { name, kind } = COLUMNS[field]
  return kind === 'hex' || kind === 'text' ? `HEX(r.${name})` : `r.${name}`
}

/**
 * The fields of one row, in the order that they were asked for; others are `undefined`. The checks
 * of the table are why its words may be taken at their word.
 */
export function toRecord(fields: readonly Field[], values: Row): StoredRecord {
  const record: Record<Field, unknown> = { ...NOTHING }
  for (const [n, field] of fields.entries()) {
    const value = values[n]
    record[field] =
      value === null || value === undefined ? undefined : READERS[COLUMNS[field].kind](value)
  }
  return record as unknown as StoredRecord
}

const NOTHING = Object.fromEntries(FIELDS.map((field) => [field, undefined])) as Record<
  Field,
  undefined
>

const READERS: Readonly<Record<Kind, (value: unknown) => unknown>> = {
  hex: (value) => String(value).toLowerCase(),
  text: (value) => Buffer.from(String(value), 'hex').toString('utf8'),
  word: String,
  number: Number,
  bytes: (value) => toBytes(value as Uint8Array),
}

/** As it came in: drivers give a `Buffer`. */
function toBytes({ buffer, byteOffset, byteLength }: Uint8Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

/** One value that no column can hold. Thrown before anything is sent. */
export class ValueFault extends Error {}

/** A value as SQL. Whatever is not exactly what the column holds is refused, never cut or bent. */
export function literalOf(field: Field, value: unknown): string {
  if (value === undefined) return 'NULL'
  const column = COLUMNS[field]
  const sql = WRITERS[column.kind](value, column)
  if (sql === undefined) throw new ValueFault(`${column.name} cannot hold its value`)
  return sql
}

const WRITERS: Readonly<Record<Kind, (value: unknown, column: Column) => string | undefined>> = {
  hex: (value) => (isMatch(value, /^[0-9a-f]{32}$/) ? `x'${value}'` : undefined),
  // Half a surrogate pair would be written as U+FFFD, and two keys would become one.
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

/** Another text can be the id of no record. */
export function isUuid(text: string | undefined): text is string {
  return isMatch(text, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)
}

export function isIdentity(text: string | undefined): text is string {
  return isMatch(text, /^[0-9a-f]{32}$/)
}

/**
 * When something has to happen to a record: the sweep, the reap. Where nothing will, when it last
 * ran. It is what lets one index serve all of them: MySQL has no partial ones.
 */
export function dueAtMs(record: StoredRecord): number {
  switch (record.state) {
    case 'in_progress':
      return record.leaseUntilMs
    case 'pending':
    case 'completed':
    case 'failed_retryable':
      return record.expiresAtMs
    case 'unknown':
    case 'expired':
      return record.lastRunAtMs
  }
}

export const DUE = 'due_at_ms'

/** The columns that differ, with what they become. */
export function changesOf(before: StoredRecord, after: StoredRecord): Map<string, string> {
  const changes = new Map<string, string>()
  for (const field of FIELDS) {
    if (before[field] !== after[field]) changes.set(nameOf(field), literalOf(field, after[field]))
  }
  // Where a record was read without its result, the two do not differ in it.
  if (after.state === 'expired') changes.set(nameOf('result'), 'NULL')
  const due = [dueAtMs(before), dueAtMs(after)]
  if (due[0] !== due[1]) changes.set(DUE, literalOf('expiresAtMs', due[1]))
  return changes
}
