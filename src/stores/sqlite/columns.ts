import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { LEASE_AHEAD_MS } from '../../core/record/shorten-lease.ts'
import type { RecordState, StoredRecord } from '../../core/record/record.ts'
import type { HistoryQuery, Lease, RecordRef } from '../../core/store/store.ts'
import { ValueFault } from '../kit/value-fault.ts'
import {
  ABANDONED,
  AHEAD,
  BEGIN_READ,
  COMMIT,
  COMPLETE,
  DELETE,
  EXPIRED,
  FIND,
  FIND_BY_RECORD_ID,
  FIND_LATER,
  GET_RECORDS,
  forTable,
  HISTORY,
  HISTORY_BY_RECORD_ID,
  INSERT,
  INSERT_PENDING,
  KEEP,
  LAPSED,
  LIST,
  LIST_COMPLETED,
  LIST_IN_PROGRESS,
  TO_TOMBSTONE,
  TOMBSTONES,
  UPDATE,
} from './sql.ts'

/** How many of the leases that end last one sweep reads, because it must not read all of them. */
const AHEAD_ROWS = 1_000

/** Statements on records over one connection, each prepared once. Makes no decisions. */
export class RecordTable {
  readonly #beginRead: StatementSync
  readonly #endRead: StatementSync
  readonly #find: StatementSync
  readonly #findByRecordId: StatementSync
  readonly #getAll: StatementSync
  readonly #insert: StatementSync
  readonly #insertPending: StatementSync
  readonly #complete: StatementSync
  readonly #update: StatementSync
  readonly #delete: StatementSync
  readonly #lapsed: StatementSync
  readonly #ahead: StatementSync
  readonly #expired: StatementSync
  readonly #findLater: StatementSync
  readonly #toTombstone: StatementSync
  readonly #tombstones: StatementSync
  readonly #abandoned: StatementSync
  readonly #keep: StatementSync
  readonly #history: StatementSync
  readonly #historyByRecordId: StatementSync
  readonly #list: StatementSync
  readonly #listInProgress: StatementSync
  readonly #listCompleted: StatementSync

  constructor(db: DatabaseSync, table: string) {
    const prepare = (sql: string) => db.prepare(forTable(table, sql))
    this.#beginRead = prepare(BEGIN_READ)
    this.#endRead = prepare(COMMIT)
    this.#find = prepare(FIND)
    this.#findByRecordId = prepare(FIND_BY_RECORD_ID)
    this.#getAll = prepare(GET_RECORDS)
    this.#insert = prepare(INSERT)
    this.#insertPending = prepare(INSERT_PENDING)
    this.#complete = prepare(COMPLETE)
    this.#update = prepare(UPDATE)
    this.#delete = prepare(DELETE)
    this.#lapsed = prepare(LAPSED)
    this.#ahead = prepare(AHEAD)
    this.#expired = prepare(EXPIRED)
    this.#findLater = prepare(FIND_LATER)
    this.#toTombstone = prepare(TO_TOMBSTONE)
    this.#tombstones = prepare(TOMBSTONES)
    this.#abandoned = prepare(ABANDONED)
    this.#keep = prepare(KEEP)
    this.#history = prepare(HISTORY)
    this.#historyByRecordId = prepare(HISTORY_BY_RECORD_ID)
    this.#list = prepare(LIST)
    this.#listInProgress = prepare(LIST_IN_PROGRESS)
    this.#listCompleted = prepare(LIST_COMPLETED)
  }

  find(identity: string): StoredRecord | undefined {
    return toRecord(this.#find.get(toBlob(identity)))
  }

  /** In the order of `identities`, from one snapshot. Must not be used within a transaction. */
  findAll(identities: readonly string[]): (StoredRecord | undefined)[] {
    this.#beginRead.run()
    try {
      return identities.map((identity) => this.find(identity))
    } finally {
      this.#endRead.run()
    }
  }

  findRef(ref: RecordRef): StoredRecord | undefined {
    if (ref.identity !== undefined) return this.find(ref.identity)
    return toRecord(this.#findByRecordId.get(ref.recordId))
  }

  /** In the order of `numbers`: rowids, all of which exist. */
  getAll(numbers: readonly number[]): StoredRecord[] {
    const rows = this.#getAll.all(JSON.stringify(numbers)) as unknown as NumberedRow[]
    const byNumber = new Map(rows.map((row) => [row.number, row]))
    return toRecords(numbers.map((number) => byNumber.get(number)))
  }

  /** A first attempt, or `pending`. `false`: the key exists, and nothing was written. */
  insert(record: StoredRecord): boolean {
    const insert = record.state === 'pending' ? this.#insertPending : this.#insert
    const { changes } = insert.run(
      toBlob(record.identity),
      record.recordId,
      record.tenant,
      record.operation,
      record.key,
      record.fingerprint,
      record.token,
      record.leaseUntilMs,
      record.onLapse,
      record.afterExpiry,
      record.createdAtMs,
      record.expiresAtMs,
      record.leaseMs ?? null,
      toIdSeed(record),
      record.refuseForMs ?? null,
    )
    return changes === 1
  }

  /** `false`: nothing was written. The lease is not held, or its record must be kept longer. */
  completeHeld(
    { identity, token, attempt }: Lease,
    { result, nowMs, expiresAtMs }: { result: Uint8Array; nowMs: number; expiresAtMs: number },
  ): boolean {
    const id = toBlob(identity)
    return this.#complete.run(id, token, attempt, nowMs, expiresAtMs, result).changes === 1
  }

  update(record: StoredRecord): void {
    this.#update.run(
      toBlob(record.identity),
      record.state,
      record.attempt,
      record.lapses,
      record.token,
      record.leaseUntilMs,
      record.onLapse,
      record.afterExpiry,
      record.proof ?? null,
      record.recoveryPoint ?? null,
      record.errorCode ?? null,
      record.reconcileAtMs ?? null,
      record.lastRunAtMs,
      record.completedAtMs ?? null,
      record.expiresAtMs,
      record.result ?? null,
      record.tries,
      record.leaseMs ?? null,
      toIdSeed(record),
      record.refuseForMs ?? null,
    )
  }

  /** Writes what `toTombstone` has made of a record. */
  makeTombstone({ identity, reconcileAtMs }: StoredRecord): void {
    this.#toTombstone.run(toBlob(identity), reconcileAtMs ?? null)
  }

  remove(identity: string): void {
    this.#delete.run(toBlob(identity))
  }

  lapsed(nowMs: number, limit: number): StoredRecord[] {
    return toRecords(this.#lapsed.all(nowMs, limit))
  }

  /** Records with leases that were granted before the clock was set back. */
  ahead(nowMs: number, limit: number): StoredRecord[] {
    return toRecords(this.#ahead.all(nowMs + LEASE_AHEAD_MS, AHEAD_ROWS, limit))
  }

  /** Without results. At most `bytes` of results in total, but at least one record. */
  expired(
    nowMs: number,
    limits: { readonly rows: number; readonly bytes: number },
  ): StoredRecord[] {
    const rows = this.#expired.all(nowMs, limits.rows) as unknown as ExpiredRow[]
    let bytes = 0
    const end = rows.findIndex((row, n) => (bytes += row.result_bytes) > limits.bytes && n > 0)
    return rows.slice(0, end === -1 ? rows.length : end).map((row) => {
      const later = row.after_expiry === 'refuse' ? this.#findLater.get(row.identity) : undefined
      return rowToRecord({ ...row, ...(later as LaterColumns | undefined) })
    })
  }

  /** Tombstones whose time is over. */
  tombstones(nowMs: number, limit: number): StoredRecord[] {
    return toRecords(this.#tombstones.all(nowMs, limit))
  }

  abandoned(nowMs: number, limit: number): StoredRecord[] {
    return toRecords(this.#abandoned.all(nowMs, limit))
  }

  /** Copies the record into the history. */
  copyToHistory(identity: string): void {
    this.#keep.run(toBlob(identity))
  }

  history({ ref, limit }: HistoryQuery): StoredRecord[] {
    if (ref.identity !== undefined) return toRecords(this.#history.all(toBlob(ref.identity), limit))
    return toRecords(this.#historyByRecordId.all(ref.recordId, limit))
  }

  /** Without results. */
  list(state: RecordState, limit: number): StoredRecord[] {
    if (state === 'in_progress') return toRecords(this.#listInProgress.all(limit))
    if (state === 'completed') return toRecords(this.#listCompleted.all(limit))
    return toRecords(this.#list.all(state, limit))
  }
}

/** `LATER_COLUMNS`. Absent if the statement does not select them. */
interface LaterColumns {
  readonly id_seed?: Uint8Array | null
  readonly refuse_for_ms?: number | null
}

/** A row of the record table. Its CHECK constraints guarantee the values of `state` and others. */
interface RecordRow extends LaterColumns {
  readonly identity: Uint8Array
  readonly record_id: string
  readonly tenant: string
  readonly operation: string
  readonly key: string
  readonly fingerprint: string
  readonly state: RecordState
  readonly attempt: number
  readonly lapses: number
  readonly token: string
  readonly lease_until_ms: number
  /** Absent if the statement does not select it. */
  readonly lease_ms?: number | null
  readonly on_lapse: StoredRecord['onLapse']
  readonly after_expiry: StoredRecord['afterExpiry']
  readonly proof: 'proven' | 'declared' | null
  readonly recovery_point: string | null
  readonly error_code: string | null
  readonly reconcile_at_ms: number | null
  readonly tries: number
  readonly created_at_ms: number
  readonly last_run_at_ms: number
  readonly completed_at_ms: number | null
  readonly expires_at_ms: number
  readonly result: Uint8Array | null
}

interface NumberedRow extends RecordRow {
  readonly number: number
}

interface ExpiredRow extends RecordRow {
  readonly result_bytes: number
}

export function toRecords(rows: readonly unknown[]): StoredRecord[] {
  return rows.map((row) => rowToRecord(row as RecordRow))
}

function toRecord(row: unknown): StoredRecord | undefined {
  return row === undefined ? undefined : rowToRecord(row as RecordRow)
}

function rowToRecord(row: RecordRow): StoredRecord {
  const { idSeed, refuseForMs } = laterFields(row)
  return {
    identity: toHex(row.identity),
    recordId: row.record_id,
    idSeed,
    tenant: row.tenant,
    operation: row.operation,
    key: row.key,
    fingerprint: row.fingerprint,
    state: row.state,
    attempt: row.attempt,
    lapses: row.lapses,
    token: row.token,
    leaseUntilMs: row.lease_until_ms,
    leaseMs: row.lease_ms ?? undefined,
    onLapse: row.on_lapse,
    afterExpiry: row.after_expiry,
    refuseForMs,
    proof: row.proof ?? undefined,
    recoveryPoint: row.recovery_point ?? undefined,
    result: row.result ?? undefined,
    errorCode: row.error_code ?? undefined,
    reconcileAtMs: row.reconcile_at_ms ?? undefined,
    tries: row.tries,
    createdAtMs: row.created_at_ms,
    lastRunAtMs: row.last_run_at_ms,
    completedAtMs: row.completed_at_ms ?? undefined,
    expiresAtMs: row.expires_at_ms,
  }
}

/** Hexadecimal digits of a record id, and of a seed. */
const ID_DIGITS = 32

/** `null`: the record has neither a seed nor a time after which its key is free again. */
function toIdSeed({ recordId, idSeed, refuseForMs }: StoredRecord): Uint8Array | null {
  if (idSeed === undefined && refuseForMs === undefined) return null
  const bytes = Buffer.from(idDigits(recordId) + (idSeed ?? ''), 'hex')
  const digits = idSeed === undefined ? ID_DIGITS : 2 * ID_DIGITS
  if (2 * bytes.length === digits) return bytes
  // A shorter value would count for no record, and the seed would be lost.
  throw new ValueFault('a record id must be a UUID, and an id seed 32 hexadecimal characters')
}

/** The fields of `LATER_COLUMNS`. They count only if they were written for this record id. */
function laterFields(row: RecordRow): Pick<StoredRecord, 'idSeed' | 'refuseForMs'> {
  const { record_id, id_seed: bytes = null, refuse_for_ms } = row
  const digits = bytes === null ? '' : toHex(bytes)
  const isValid = digits !== '' && digits.slice(0, ID_DIGITS) === idDigits(record_id)
  if (!isValid) return { idSeed: undefined, refuseForMs: undefined }
  const idSeed = digits.slice(ID_DIGITS)
  return { idSeed: idSeed === '' ? undefined : idSeed, refuseForMs: refuse_for_ms ?? undefined }
}

function idDigits(recordId: string): string {
  return recordId.replaceAll('-', '').toLowerCase()
}

/** Text that is not hexadecimal gives a short blob, which the table's CHECK rejects. */
export function toBlob(identity: string): Uint8Array {
  return Buffer.from(identity, 'hex')
}

function toHex({ buffer, byteOffset, byteLength }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('hex')
}
