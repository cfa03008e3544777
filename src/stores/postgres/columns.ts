import { NO_BYTES } from '../../core/bytes.ts'
import { decideFind } from '../../core/record/decide-find.ts'
import type { RecordState, StoredRecord } from '../../core/record/record.ts'
import type {
  ClaimedFrom,
  ClaimOutcome,
  ClaimRequest,
  SettleOutcome,
  Settlement,
  SweptRecord,
} from '../../core/store/store.ts'
import type { Row } from './driver/driver.ts'
import { storeFailed } from './failures.ts'

/** The row must be read again: it is locked, or it changed between two statements. */
export const AGAIN = 'again'

/** Maps the rows of a call by identity. Rows that the call wrote come before rows it read. */
export function byIdentity(rows: readonly Row[]): Map<string, Row> {
  const rowOf = new Map<string, Row>()
  for (const row of rows) {
    const identity = row[0] as string
    if (!rowOf.has(identity)) rowOf.set(identity, row)
  }
  return rowOf
}

type ClaimRow = readonly [
  identity: string,
  how: ClaimedFrom | 'found' | 'found_expired' | 'found_refused' | 'found_overdue',
  recordId: string,
  state: RecordState,
  attempt: number,
  own: boolean,
  fingerprint: string,
  recoveryPoint: string | null,
  result: Uint8Array | null,
  leaseLeftMs: number,
  reconcileInMs: number,
  expiresAtMs: number,
  idSeed: string | null,
]

/** Parses the answer to a single call into the row of a batch. Null: there is no record. */
export function toRow(identity: string, answer: unknown): Row | undefined {
  if (answer === null) return undefined
  try {
    return [identity, ...(JSON.parse(answer as string) as unknown[])]
  } catch (cause) {
    throw storeFailed('read an answer', new Error(UNREADABLE, { cause }))
  }
}

const UNREADABLE =
  'it is not JSON as the functions of the store return it: a parser or transform of the driver ' +
  'has changed it (remove that), or the functions are of another version (call store.migrate())'

/** Parses the answer to a single claim. A completed record has its result on a second line. */
export function toClaimRow(identity: string, answer: unknown): Row | undefined {
  const end = typeof answer === 'string' ? answer.indexOf('\n') : -1
  if (end < 0) return toRow(identity, answer)
  const text = answer as string
  return toRow(identity, text.slice(0, end))?.with(RESULT, Buffer.from(text.slice(end + 1), 'hex'))
}

const RESULT = 8

/** Makes its checks in the order of `core/record/decide.ts`. */
export function toClaimOutcome(row: Row, request: ClaimRequest): ClaimOutcome | typeof AGAIN {
  const [, how, recordId, state, , own, fingerprint] = row as ClaimRow
  switch (how) {
    case 'new':
    case 'retry':
    case 'lapsed':
    case 'expired':
    case 'accepted':
      if (state === 'pending') return pending(row)
      return state === 'unknown' ? unknownOutcome(row, true) : claimed(row, request, how)
    case 'found_refused':
      return { kind: 'expired', recordId }
    case 'found_expired':
      return request.mode === 'take' ? nothingToTake(request) : AGAIN
    case 'found':
    case 'found_overdue':
      if (state === 'in_progress' && own) return claimedBefore(row, request)
      if (fingerprint !== request.fingerprint) return { kind: 'mismatch', recordId, fingerprint }
      return found(row, request)
  }
}

/**
 * Outcomes of a batch whose keys were all new. The database then sends one row with the time of the
 * claim, because the records hold only values of the requests. `undefined` if it sent a row for
 * each key.
 */
export function allNew(rows: readonly Row[], requests: readonly ClaimRequest[]) {
  const [, how, , , , , , , , , , nowMs] = rows[0] ?? []
  if (how !== 'all_new') return undefined
  return requests.map((request) => claimedNew(request, nowMs as number))
}

function claimedNew(request: ClaimRequest, nowMs: number): ClaimOutcome {
  const { identity, token, recordId, idSeed } = request
  const expiresAt = new Date(nowMs + request.retentionMs)
  if (request.mode === 'accept') return { kind: 'pending', recordId, accepted: true, expiresAt }
  const lease = { identity, token, attempt: 1 }
  const recoveryPoint = undefined
  return { kind: 'claimed', lease, recordId, idSeed, from: 'new', recoveryPoint, expiresAt }
}

/** The outcome for a key without a record. */
export function nothingToTake({ recordId }: ClaimRequest): ClaimOutcome {
  return { kind: 'expired', recordId }
}

/** The outcome of a claim while the row is locked, so that it is about to change. */
export function inProgress(row: Row): ClaimOutcome {
  const [, , recordId, , , , , , , leaseLeftMs, , expiresAtMs] = row as ClaimRow
  return { kind: 'in_progress', recordId, leaseLeftMs, expiresAt: new Date(expiresAtMs) }
}

function found(row: Row, { mode }: ClaimRequest): ClaimOutcome | typeof AGAIN {
  const [, how, recordId, state, , own, , , result, leaseLeftMs, , expiresAtMs] = row as ClaimRow
  switch (state) {
    case 'completed':
      return {
        kind: 'completed',
        recordId,
        result: result ?? NO_BYTES,
        expiresAt: new Date(expiresAtMs),
      }
    case 'in_progress':
      return leaseLeftMs > 0 ? inProgress(row) : AGAIN
    case 'failed_retryable':
      // A repetition of a claim that was released before it was answered gets nothing.
      return own
        ? { kind: 'in_progress', recordId, leaseLeftMs: 0, expiresAt: new Date(expiresAtMs) }
        : AGAIN
    case 'unknown':
      return unknownOutcome(row, false)
    case 'pending':
      if (mode !== 'take') return pending(row)
      return how === 'found_overdue' ? { kind: 'expired', recordId } : AGAIN
    case 'expired':
      return { kind: 'expired', recordId }
  }
}

function pending(row: Row): ClaimOutcome {
  const [, , recordId, , , own, , , , , , expiresAtMs] = row as ClaimRow
  return { kind: 'pending', recordId, accepted: own, expiresAt: new Date(expiresAtMs) }
}

function claimed(row: Row, request: ClaimRequest, from: ClaimedFrom): ClaimOutcome {
  const { identity, token } = request
  const [, , recordId, , attempt, , , recoveryPoint, , , , expiresAtMs, idSeed] = row as ClaimRow
  return {
    kind: 'claimed',
    lease: { identity, token, attempt },
    recordId,
    idSeed: idSeed ?? undefined,
    from,
    recoveryPoint: recoveryPoint ?? undefined,
    expiresAt: new Date(expiresAtMs),
  }
}

/** An earlier send of this claim took the key, and its answer was lost. */
function claimedBefore(row: Row, request: ClaimRequest): ClaimOutcome {
  const [, , , , attempt] = row as ClaimRow
  return claimed(row, request, attempt === 1 ? 'new' : 'retry')
}

function unknownOutcome(row: Row, lapsed: boolean): ClaimOutcome {
  const [, , recordId, , attempt, , , , , , reconcileInMs] = row as ClaimRow
  return { kind: 'unknown', recordId, attempt, reconcileInMs, lapsed }
}

export type SettleRow = readonly [
  identity: string,
  done: boolean,
  own: boolean,
  state: RecordState,
  expiresAtMs: number,
]

const SETTLED_STATE = {
  complete: 'completed',
  release: 'failed_retryable',
  doubt: 'unknown',
} as const satisfies Record<Settlement['kind'], RecordState>

/**
 * Outcomes of a batch that was written as a whole. The database then sends one row with the time of
 * the write. `undefined` if it sent a row for each lease, as it does for a doubt, which does not
 * change the expiry.
 */
export function allSettled(
  rows: readonly Row[],
  settlements: readonly Settlement[],
): SettleOutcome[] | undefined {
  const [identity, , , , nowMs] = rows[0] ?? []
  if (identity !== null) return undefined
  return settlements.map((one) => {
    const retentionMs = one.kind === 'doubt' ? 0 : one.retentionMs
    return { kind: 'settled', expiresAt: new Date((nowMs as number) + retentionMs) }
  })
}

export function toSettleOutcome(
  row: Row | undefined,
  { kind }: Settlement,
): SettleOutcome | typeof AGAIN {
  if (row === undefined) return { kind: 'fenced', own: false, state: 'absent' }
  const [, done, own, state, expiresAtMs] = row as SettleRow
  if (done || (own && state === SETTLED_STATE[kind])) {
    return { kind: 'settled', expiresAt: new Date(expiresAtMs) }
  }
  // The lease is held but was not written: it began between the two statements of the call.
  if (own && state === 'in_progress') return AGAIN
  return { kind: 'fenced', own, state }
}

/** Whether this call wrote the row. */
export function isWritten(row: Row | undefined): boolean {
  return row !== undefined && (row as SettleRow)[1]
}

/** The answer to a look-up. Only a record that exists comes with the time of the database. */
export function toFindOutcome(row: Row | undefined, request: ClaimRequest): ClaimOutcome {
  if (row === undefined) return decideFind(undefined, request, 0)
  return decideFind(toRecord(row), request, row.at(-1) as number)
}

export function toSwept(row: Row): SweptRecord {
  const [identity, recordId, tenant, operation, attempt, state] = row as readonly [
    string,
    string,
    string,
    string,
    number,
    'unknown' | 'failed_retryable',
  ]
  return { identity, recordId, tenant, operation, attempt, to: state }
}

type RecordRow = readonly [
  identity: string,
  recordId: string,
  tenant: string,
  operation: string,
  key: string,
  fingerprint: string,
  state: RecordState,
  attempt: number,
  lapses: number,
  token: string,
  onLapse: StoredRecord['onLapse'],
  afterExpiry: StoredRecord['afterExpiry'],
  proof: 'proven' | 'declared' | null,
  recoveryPoint: string | null,
  errorCode: string | null,
  leaseUntilMs: number,
  reconcileAtMs: number | null,
  tries: number,
  createdAtMs: number,
  lastRunAtMs: number,
  completedAtMs: number | null,
  expiresAtMs: number,
  idSeed: string | null,
  refuseForMs: number | null,
  result?: Uint8Array | null,
]

/** Column types guarantee valid values, so they are not validated again. */
export function toRecord(columns: Row): StoredRecord {
  const row = columns as RecordRow
  return {
    identity: row[0],
    recordId: row[1],
    tenant: row[2],
    operation: row[3],
    key: row[4],
    fingerprint: row[5],
    state: row[6],
    attempt: row[7],
    lapses: row[8],
    token: row[9],
    onLapse: row[10],
    afterExpiry: row[11],
    proof: row[12] ?? undefined,
    recoveryPoint: row[13] ?? undefined,
    errorCode: row[14] ?? undefined,
    leaseUntilMs: row[15],
    // Only the functions in the database read it.
    leaseMs: undefined,
    reconcileAtMs: row[16] ?? undefined,
    tries: row[17],
    createdAtMs: row[18],
    lastRunAtMs: row[19],
    completedAtMs: row[20] ?? undefined,
    expiresAtMs: row[21],
    idSeed: row[22] ?? undefined,
    refuseForMs: row[23] ?? undefined,
    result: row[24] ?? undefined,
  }
}
