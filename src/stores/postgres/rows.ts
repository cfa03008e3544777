import type { RecordState, StoredRecord } from '../../core/record.ts'
import type {
  ClaimedFrom,
  ClaimOutcome,
  ClaimRequest,
  SettleOutcome,
  Settlement,
  SweptRecord,
} from '../../core/store.ts'
import type { Row } from './client.ts'
import { storeFailed } from './failures.ts'

/** A row to look at again: somebody has it locked, or moved it on between two statements. */
export const AGAIN = 'again'

type ClaimRow = readonly [
  identity: string,
  how: ClaimedFrom | 'found' | 'found_expired' | 'found_overdue',
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
]

/** The answer to a single call, as the row that would tell of it in a batch. Null: of nothing. */
export function toRow(identity: string, answer: unknown): Row | undefined {
  if (answer === null) return undefined
  try {
    return [identity, ...(JSON.parse(answer as string) as unknown[])]
  } catch (cause) {
    throw storeFailed('read an answer', new Error(NOT_OURS, { cause }))
  }
}

const NOT_OURS =
  'it is not what our functions give: a parser or transform of the driver has changed it, or the ' +
  'functions are those of another version'

/** The same of a claim, whose result is on a second line, where it has one. */
export function toClaimRow(identity: string, answer: unknown): Row | undefined {
  const end = typeof answer === 'string' ? answer.indexOf('\n') : -1
  if (end < 0) return toRow(identity, answer)
  const text = answer as string
  return toRow(identity, text.slice(0, end))?.with(RESULT, Buffer.from(text.slice(end + 1), 'hex'))
}

const RESULT = 8

/** In the order of the checks in `core/decide.ts`. */
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
    case 'found_expired':
      if (request.afterExpiry === 'refuse') return { kind: 'expired', recordId }
      return request.mode === 'take' ? nothingToTake(request) : AGAIN
    case 'found':
    case 'found_overdue':
      if (state === 'in_progress' && own) return claimedBefore(row, request)
      if (fingerprint !== request.fingerprint) return { kind: 'mismatch', recordId, fingerprint }
      return found(row, request)
  }
}

/**
 * One row for all, where all were new: when they were claimed. All that is on record is what was
 * asked for. `undefined` where there is a row for each.
 */
export function allNew(rows: readonly Row[], requests: readonly ClaimRequest[]) {
  const [, how, , , , , , , , , , nowMs] = rows[0] ?? []
  if (how !== 'all_new') return undefined
  return requests.map((request) => claimedNew(request, nowMs as number))
}

function claimedNew(request: ClaimRequest, nowMs: number): ClaimOutcome {
  const { identity, token, recordId } = request
  const expiresAt = new Date(nowMs + request.retentionMs)
  if (request.mode === 'accept') return { kind: 'pending', recordId, accepted: true, expiresAt }
  const lease = { identity, token, attempt: 1 }
  return { kind: 'claimed', lease, recordId, from: 'new', recoveryPoint: undefined, expiresAt }
}

/** A key without a record. */
export function nothingToTake({ recordId }: ClaimRequest): ClaimOutcome {
  return { kind: 'expired', recordId }
}

/** What a claim gets while somebody else has the row locked: it is about to move. */
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
      // The echo of a claim that was released unanswered takes nothing.
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
  const [, , recordId, , attempt, , , recoveryPoint, , , , expiresAtMs] = row as ClaimRow
  return {
    kind: 'claimed',
    lease: { identity, token, attempt },
    recordId,
    from,
    recoveryPoint: recoveryPoint ?? undefined,
    expiresAt: new Date(expiresAtMs),
  }
}

/** The answer to this very claim was lost on its way: it had won. */
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
 * The same of settlements: when they were written. `undefined` where there is a row for each, as
 * for a doubt, which keeps its expiry.
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
  // Held, and yet not written: it came into being between the two statements of the call.
  if (own && state === 'in_progress') return AGAIN
  return { kind: 'fenced', own, state }
}

/** Whether this very call has written the row. */
export function isWritten(row: Row | undefined): boolean {
  return row !== undefined && (row as SettleRow)[1]
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
  result?: Uint8Array | null,
]

/** The checks of the table are why its words may be taken at their word. */
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
    // Only the functions in the database look at it.
    leaseMs: undefined,
    reconcileAtMs: row[16] ?? undefined,
    tries: row[17],
    createdAtMs: row[18],
    lastRunAtMs: row[19],
    completedAtMs: row[20] ?? undefined,
    expiresAtMs: row[21],
    result: row[22] ?? undefined,
  }
}

const NO_BYTES = new Uint8Array(0)
