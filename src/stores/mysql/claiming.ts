import { decideClaim } from '../../core/decide.ts'
import type { StoredRecord } from '../../core/record.ts'
import type { ClaimOutcome, ClaimRequest } from '../../core/store.ts'
import { transact, type Session } from './driver.ts'
import { lockFree, makeMoves, readSnapshot, take, type Move, type Place } from './moves.ts'

/** What one pass over a batch of claims has found out. */
export interface ClaimPass {
  readonly outcomes: ReadonlyMap<string, ClaimOutcome>
  /** What the others were like, where there was a record, and when. */
  readonly seen: ReadonlyMap<string, StoredRecord>
  readonly nowMs: number
  /** Somebody else has one of the others locked: it takes a moment until it can be had. */
  readonly isLocked: boolean
}

interface Decided {
  readonly request: ClaimRequest
  readonly record: StoredRecord | undefined
  readonly outcome: ClaimOutcome
  readonly write?: StoredRecord
}

/**
 * 1. Reads. It waits for nobody, so a duplicate is answered even while its key's row is locked,
 *    and a replay writes nothing.
 * 2. Takes the keys that were free, in one statement that commits alone.
 * 3. Only where somebody claims what was released, has lapsed, was accepted or has expired: locks
 *    those rows that nobody else has locked, decides again, and writes.
 */
export async function claimOnce(
  session: Session,
  place: Place,
  requests: readonly ClaimRequest[],
): Promise<ClaimPass> {
  const { nowMs, byIdentity } = await readSnapshot(session, place, requests)
  const decided = requests.map((request): Decided => {
    const record = byIdentity.get(request.identity)
    return { request, record, ...decideClaim(record, request, nowMs) }
  })
  const outcomes = new Map<string, ClaimOutcome>()
  for (const { request, outcome, write } of decided) {
    if (write === undefined) outcomes.set(request.identity, outcome)
  }
  const writing = decided.filter(({ write }) => write !== undefined)
  const fresh = writing.filter(({ record }) => record === undefined)
  await takeFree(session, place, { fresh, outcomes })
  const moving = writing.filter(({ record }) => record !== undefined)
  const isLocked = await takeOver(session, place, { moving, outcomes })
  return { outcomes, seen: byIdentity, nowMs, isLocked }
}

async function takeFree(
  session: Session,
  place: Place,
  { fresh, outcomes }: { fresh: readonly Decided[]; outcomes: Map<string, ClaimOutcome> },
): Promise<void> {
  if (fresh.length === 0) return
  const records = fresh.map(({ write }) => write!).toSorted(byIdentityOrder)
  const ours = await take(session, place, records)
  for (const { request, outcome } of fresh) {
    if (ours.has(request.identity)) outcomes.set(request.identity, outcome)
  }
}

/** `true`: a row that is to be taken over was locked. */
function takeOver(
  session: Session,
  place: Place,
  { moving, outcomes }: { moving: readonly Decided[]; outcomes: Map<string, ClaimOutcome> },
): Promise<boolean> {
  if (moving.length === 0) return Promise.resolve(false)
  const requests = moving.map(({ request }) => request)
  return transact(session, async () => {
    const { nowMs, byIdentity } = await lockFree(session, place, requests)
    const moves: Move[] = []
    const taken = new Map<string, ClaimOutcome>()
    for (const request of requests) {
      const before = byIdentity.get(request.identity)
      if (before === undefined) continue
      // Decided again: it may have moved on since it was read. What needs no write now is read
      // once more, for this read has no result to replay.
      const { outcome, write } = decideClaim(before, request, nowMs)
      if (write === undefined) continue
      moves.push({ before, after: write })
      taken.set(request.identity, outcome)
    }
    const made = await makeMoves(session, place, moves)
    for (const { before } of made) outcomes.set(before.identity, taken.get(before.identity)!)
    return byIdentity.size < requests.length || made.length < moves.length
  })
}

function byIdentityOrder(a: StoredRecord, b: StoredRecord): number {
  return a.identity < b.identity ? -1 : 1
}
