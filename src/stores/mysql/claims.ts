/** Takes keys: `claim` for new holders, `renew` for current ones. */
import { decideClaim, decideRenew } from '../../core/record/decide.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type { ClaimOutcome, ClaimRequest, Renewal } from '../../core/store/store.ts'
import { sleep, systemClock } from '../../core/time/clock.ts'
import { inRounds } from '../kit/rounds.ts'
import { checkValues, checkWord, inPieces, withoutBytes } from './calls.ts'
import { ValueFault } from '../kit/value-fault.ts'
import { isUuid, literalOf } from './columns.ts'
import { transact, type Session } from './driver/driver.ts'
import { storeFailed } from './failures.ts'
import {
  applyMoves,
  insertFree,
  lockFree,
  readLeases,
  readSnapshot,
  type Move,
  type RecordContext,
  type StoreContext,
} from './moves.ts'

/**
 * How many times a locked row is tried: usually the transaction that has locked it is about to
 * commit. After that the call answers with what it has read, because a lock may be held for long.
 */
const LOCKED_TRIES = 10
const LOCKED_MS = 10

export async function claim(
  store: StoreContext,
  requests: readonly ClaimRequest[],
  signal?: AbortSignal,
): Promise<ClaimOutcome[]> {
  checkClaims(requests)
  return inRounds(requests, identityOf, (round) =>
    inPieces(round, withoutBytes, (piece) => claimPiece(store, piece, signal)),
  )
}

export async function renew(
  store: StoreContext,
  renewals: readonly Renewal[],
  signal?: AbortSignal,
): Promise<boolean[]> {
  return inRounds(renewals, identityOf, (round) =>
    inPieces(round, withoutBytes, (piece) => renewPiece(store, piece, signal)),
  )
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}

/**
 * Rejects values that no column can hold before any part of the batch is sent: a rejected call
 * must have written nothing, into however many pieces it is divided.
 */
function checkClaims(requests: readonly ClaimRequest[]): void {
  checkValues('claim', () => {
    for (const request of requests) {
      literalOf('identity', request.identity)
      literalOf('tenant', request.tenant)
      literalOf('operation', request.operation)
      literalOf('key', request.key)
      literalOf('fingerprint', request.fingerprint)
      literalOf('token', request.token)
      literalOf('leaseUntilMs', request.leaseMs)
      literalOf('expiresAtMs', request.retentionMs)
      literalOf('attempt', request.maxLapses)
      literalOf('idSeed', request.idSeed)
      literalOf('refuseForMs', request.refuseForMs)
      checkWord(['unknown', 'rerun', 'resume'], request.onLapse)
      checkWord(['new', 'refuse'], request.afterExpiry)
      if (!isUuid(request.recordId)) throw new ValueFault('record_id cannot hold its value')
    }
  })
}

async function claimPiece(
  { calls, current }: StoreContext,
  requests: readonly ClaimRequest[],
  signal: AbortSignal | undefined,
): Promise<ClaimOutcome[]> {
  const outcomes = new Map<string, ClaimOutcome>()
  let left = requests
  for (let tries = 1; ; tries++) {
    const open = left
    const pass = await calls.make('claim', (session) => claimOnce(session, current(), open), signal)
    for (const [identity, outcome] of pass.outcomes) outcomes.set(identity, outcome)
    left = open.filter(({ identity }) => !outcomes.has(identity))
    if (left.length > 0 && tries === LOCKED_TRIES) {
      for (const { identity } of left) outcomes.set(identity, lockedOutcome(pass, identity))
      left = []
    }
    if (left.length === 0) return requests.map(({ identity }) => outcomes.get(identity)!)
    if (pass.isLocked) await sleep(systemClock, LOCKED_MS, signal)
  }
}

/** Result of one pass over a batch of claims. */
interface ClaimPass {
  readonly outcomes: ReadonlyMap<string, ClaimOutcome>
  /** Records as the pass has read them at `nowMs`. */
  readonly records: ReadonlyMap<string, StoredRecord>
  readonly nowMs: number
  /** Another transaction has locked a record that has no outcome yet. */
  readonly isLocked: boolean
}

/** Outcome for a record that stays locked: another transaction is about to change it. */
function lockedOutcome({ records, nowMs }: ClaimPass, identity: string): ClaimOutcome {
  const record = records.get(identity)
  if (record === undefined) {
    const problem = `the record changed during each of ${LOCKED_TRIES} attempts to claim it`
    throw storeFailed('claim', new Error(problem))
  }
  const { recordId, leaseUntilMs, expiresAtMs } = record
  const leaseLeftMs = Math.max(0, leaseUntilMs - nowMs)
  return { kind: 'in_progress', recordId, leaseLeftMs, expiresAt: new Date(expiresAtMs) }
}

interface ClaimDecision {
  readonly request: ClaimRequest
  readonly record: StoredRecord | undefined
  readonly outcome: ClaimOutcome
  readonly write?: StoredRecord
}

/**
 * 1. Reads without waiting for locks. A duplicate is answered even while the row of its key is
 *    locked, and a replay writes nothing.
 * 2. Inserts records for the keys that were free, in one statement that commits alone.
 * 3. For records that were released, have lapsed, were accepted or have expired: locks the rows
 *    that no other transaction has locked, decides again, and writes.
 */
async function claimOnce(
  session: Session,
  context: RecordContext,
  requests: readonly ClaimRequest[],
): Promise<ClaimPass> {
  const { nowMs, byIdentity: records } = await readSnapshot(session, context, requests)
  const decisions = requests.map((request): ClaimDecision => {
    const record = records.get(request.identity)
    return { request, record, ...decideClaim(record, request, nowMs) }
  })
  const outcomes = new Map<string, ClaimOutcome>()
  for (const { request, outcome, write } of decisions) {
    if (write === undefined) outcomes.set(request.identity, outcome)
  }
  const writing = decisions.filter(({ write }) => write !== undefined)
  const free = writing.filter(({ record }) => record === undefined)
  await claimFree(session, context, { free, outcomes })
  const existing = writing.filter(({ record }) => record !== undefined)
  const isLocked = await takeOver(session, context, { existing, outcomes })
  return { outcomes, records, nowMs, isLocked }
}

async function claimFree(
  session: Session,
  context: RecordContext,
  {
    free,
    outcomes,
  }: { readonly free: readonly ClaimDecision[]; readonly outcomes: Map<string, ClaimOutcome> },
): Promise<void> {
  if (free.length === 0) return
  const records = free.map(({ write }) => write!).toSorted(byIdentityOrder)
  const inserted = await insertFree(session, context, records)
  for (const { request, outcome } of free) {
    if (inserted.has(request.identity)) outcomes.set(request.identity, outcome)
  }
}

/** Returns `true` if a record to take over was locked. */
function takeOver(
  session: Session,
  context: RecordContext,
  {
    existing,
    outcomes,
  }: { readonly existing: readonly ClaimDecision[]; readonly outcomes: Map<string, ClaimOutcome> },
): Promise<boolean> {
  if (existing.length === 0) return Promise.resolve(false)
  const requests = existing.map(({ request }) => request)
  return transact(session, async () => {
    const { nowMs, byIdentity } = await lockFree(session, context, requests)
    const moves: Move[] = []
    const decided = new Map<string, ClaimOutcome>()
    for (const request of requests) {
      const before = byIdentity.get(request.identity)
      if (before === undefined) continue
      // Decides again, because the record may have changed since it was read. A record that needs
      // no write any more is left to the next pass: this read has no result to replay.
      const { outcome, write } = decideClaim(before, request, nowMs)
      if (write === undefined) continue
      moves.push({ before, after: write })
      decided.set(request.identity, outcome)
    }
    const applied = await applyMoves(session, context, moves)
    for (const { before } of applied) outcomes.set(before.identity, decided.get(before.identity)!)
    return byIdentity.size < requests.length || applied.length < moves.length
  })
}

function byIdentityOrder(a: StoredRecord, b: StoredRecord): number {
  return a.identity < b.identity ? -1 : 1
}

/**
 * A record that stays locked cannot be renewed, and must not be reported as renewed: its holder
 * would rely on a lease that the database does not have. The call fails instead, and the engine
 * renews again. Renewing a lease twice is harmless.
 */
async function renewPiece(
  { calls, current }: StoreContext,
  renewals: readonly Renewal[],
  signal: AbortSignal | undefined,
): Promise<boolean[]> {
  const answers = new Map<string, boolean>()
  let left = renewals
  for (let tries = 1; left.length > 0 && tries <= LOCKED_TRIES; tries++) {
    if (tries > 1) await sleep(systemClock, LOCKED_MS, signal)
    const open = left
    const pass = (session: Session) => renewOnce(session, current(), open)
    const known = await calls.make('renew', pass, signal)
    for (const [identity, isRenewed] of known) answers.set(identity, isRenewed)
    left = open.filter(({ identity }) => !answers.has(identity))
  }
  if (left.length > 0) {
    const cause = new Error(`${left.length} of ${renewals.length} records are locked`)
    throw storeFailed('renew', cause)
  }
  return renewals.map(({ identity }) => answers.get(identity)!)
}

/**
 * Skips locked rows: otherwise one transaction that is committing would delay all renewals. The
 * result has no entry for a locked record.
 */
async function renewOnce(
  session: Session,
  context: RecordContext,
  renewals: readonly Renewal[],
): Promise<ReadonlyMap<string, boolean>> {
  const answers = new Map<string, boolean>()
  await transact(session, async () => {
    const { nowMs, byIdentity } = await lockFree(session, context, renewals)
    const moves: Move[] = []
    for (const renewal of renewals) {
      const before = byIdentity.get(renewal.identity)
      if (before === undefined) continue
      const after = decideRenew(before, renewal, nowMs)
      if (after !== undefined) moves.push({ before, after })
      answers.set(renewal.identity, after !== undefined)
    }
    await applyMoves(session, context, moves)
  })
  if (answers.size === renewals.length) return answers
  // Distinguishes locked records from records that have changed or were removed.
  const { byIdentity } = await readLeases(session, context, renewals)
  for (const renewal of renewals) {
    const isHeld = decideRenew(byIdentity.get(renewal.identity), renewal, 0) !== undefined
    if (!answers.has(renewal.identity) && !isHeld) answers.set(renewal.identity, false)
  }
  return answers
}
