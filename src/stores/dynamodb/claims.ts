import { decideClaim, decideRenew } from '../../core/record/decide.ts'
import type { ClaimOutcome, ClaimRequest, Renewal } from '../../core/store/store.ts'
import type { Calls } from './calls.ts'
import { RowWrites } from './driver/write-attempts.ts'
import { NothingWritten } from './failures.ts'
import type { RecordMoves } from './moves.ts'
import { checkClaim, checkRenewal } from './request-checks.ts'
import { PARTS_MISSING, RESULT_TRIES } from './results.ts'
import { runRows } from './rows.ts'

/** Claims keys and renews their leases. */
export class Claims {
  readonly #calls: Calls
  readonly #moves: RecordMoves

  constructor(calls: Calls, moves: RecordMoves) {
    this.#calls = calls
    this.#moves = moves
  }

  claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    const run = (request: ClaimRequest) => this.#claim(request)
    const work = { operation: 'claim', check: checkClaim, keyOf: identityOf, run }
    return runRows(this.#calls, work, requests, signal)
  }

  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    const run = (renewal: Renewal) => this.#renew(renewal)
    const work = { operation: 'renew', check: checkRenewal, keyOf: identityOf, run }
    return runRows(this.#calls, work, renewals, signal)
  }

  async #claim(request: ClaimRequest): Promise<ClaimOutcome> {
    const writes = new RowWrites()
    try {
      return await this.#claimRow(request, writes)
    } catch (error) {
      throw writes.mayHaveWritten ? error : new NothingWritten(error)
    }
  }

  async #claimRow(request: ClaimRequest, writes: RowWrites): Promise<ClaimOutcome> {
    const { identity, leaseMs } = request
    // Neither creates a record, so there is no write to begin with.
    const isForRecords = request.mode === 'take' || request.mode === 'find'
    let from: 'free' | 'read' = isForRecords ? 'read' : 'free'
    for (let tries = 1; tries <= RESULT_TRIES; tries++) {
      const { outcome, stored } = await this.#moves.make({
        identity,
        from,
        leaseMs,
        writes,
        decide: (record, nowMs) => decideClaim(record, request, nowMs),
      })
      if (outcome.kind !== 'completed' || stored?.parts === undefined) return outcome
      const result = await this.#moves.results.load(stored)
      if (result !== undefined && result !== 'gone') return { ...outcome, result }
      // The record expired and was replaced while its parts were read. Read the new record.
      from = 'read'
    }
    throw new Error(PARTS_MISSING)
  }

  async #renew(renewal: Renewal): Promise<boolean> {
    const { outcome } = await this.#moves.make({
      identity: renewal.identity,
      from: 'known',
      leaseMs: renewal.leaseMs,
      decide: (record, nowMs) => {
        const write = decideRenew(record, renewal, nowMs)
        return write === undefined ? { outcome: false } : { outcome: true, write }
      },
    })
    return outcome
  }
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}
