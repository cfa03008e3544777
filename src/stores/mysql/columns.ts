/** The record as columns: how each field is read and how it is written, in one table. */
import type { StoredRecord } from '../../core/record.ts'
import type { Row } from './client.ts'
import { fromColumn, readColumn, toColumn, type Column } from './values.ts'

export type Field = keyof StoredRecord

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
  leaseMs: { name: 'lease_ms', kind: 'number' },
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
  'recoveryPoint',
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

/** What the history keeps: it knows no token and no lease, and its state is always `expired`. */
export const KEPT: readonly Field[] = FIELDS.filter(
  (field) => field !== 'token' && field !== 'state' && field !== 'leaseMs',
)

export const nameOf = (field: Field): string => COLUMNS[field].name

/** How a column is read from the table that is called `r`. */
export const readSql = (field: Field): string =>
  field === 'leaseMs' ? LEASE_MS : readColumn(COLUMNS[field], 'r')

export const LEASE_FROM = 'lease_from_ms'

/**
 * A node of an older version that claims or renews writes neither of the two columns. Then they do
 * not add up to the end of the lease any more, and its length is not known.
 */
const LEASE_MS = `CASE WHEN r.${LEASE_FROM} + r.lease_ms = r.lease_until_ms THEN r.lease_ms END`

/** When the lease was given, as SQL. */
export function leaseFromSql({ leaseUntilMs, leaseMs }: StoredRecord): string {
  return literalOf('leaseMs', leaseMs === undefined ? undefined : leaseUntilMs - leaseMs)
}

/**
 * The fields of one row, in the order that they were asked for; others are `undefined`. The checks
 * of the table are why its words may be taken at their word.
 */
export function toRecord(fields: readonly Field[], values: Row): StoredRecord {
  const record: Record<Field, unknown> = { ...NOTHING }
  for (const [n, field] of fields.entries()) record[field] = fromColumn(COLUMNS[field], values[n])
  return record as unknown as StoredRecord
}

const NOTHING = Object.fromEntries(FIELDS.map((field) => [field, undefined])) as Record<
  Field,
  undefined
>

/** A value as SQL. Whatever is not exactly what the column holds is refused, never cut or bent. */
export const literalOf = (field: Field, value: unknown): string => toColumn(COLUMNS[field], value)

/** Later than everything: nothing will happen to it by itself. */
const NEVER_MS = Number.MAX_SAFE_INTEGER

/**
 * When something has to happen to a record: the sweep, the reap, the reconciler, a worker. Where
 * nothing will, when it last ran. It is what lets one index serve all of them: MySQL has no partial
 * ones.
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
      // What has run before never expires. Of the others, a worker or the reaper: who comes first.
      return attempt > 0 ? reconcileAtMs : Math.min(reconcileAtMs, expiresAtMs)
    }
    case 'unknown':
      return record.reconcileAtMs ?? NEVER_MS
    case 'expired':
      return record.lastRunAtMs
  }
}

/**
 * Whether it waits for a worker that goes on with its operation. The index has these apart from
 * what only waits for its expiry: neither reaper nor worker may have to walk past the other's.
 */
export function isToRun({ state, recoveryPoint }: StoredRecord): boolean {
  return recoveryPoint !== undefined && (state === 'pending' || state === 'failed_retryable')
}

export const DUE = 'due_at_ms'
export const TO_RUN = 'to_run'
export const RUN_AS = 'run_as'

/** Of a record that has a recovery point, and no operation to be run as. */
const NOBODY = '1'

/** The columns that differ, with what they become. */
export function changesOf(before: StoredRecord, after: StoredRecord): Map<string, string> {
  const changes = new Map<string, string>()
  for (const field of FIELDS) {
    if (before[field] !== after[field]) changes.set(nameOf(field), literalOf(field, after[field]))
  }
  const leaseFrom = [leaseFromSql(before), leaseFromSql(after)] as const
  if (leaseFrom[0] !== leaseFrom[1]) changes.set(LEASE_FROM, leaseFrom[1])
  // Where a record was read without its result, the two do not differ in it.
  if (after.state === 'expired') changes.set(nameOf('result'), 'NULL')
  const due = [dueAtMs(before), dueAtMs(after)]
  if (due[0] !== due[1]) changes.set(DUE, literalOf('expiresAtMs', due[1]))
  const toRun = [isToRun(before), isToRun(after)]
  if (toRun[0] !== toRun[1]) changes.set(TO_RUN, toRun[1] === true ? RUN_AS : '0')
  if (before.recoveryPoint === undefined && after.recoveryPoint !== undefined) {
    runsAs(changes, NOBODY)
  }
  return changes
}

/** The first step of an operation: from now on it is known what the record is to be run as. */
export function runsAs(changes: Map<string, string>, number: string): void {
  changes.set(RUN_AS, number)
  // One assignment must not rely on another one of the same statement.
  if ((changes.get(TO_RUN) ?? '0') !== '0') changes.set(TO_RUN, number)
}
