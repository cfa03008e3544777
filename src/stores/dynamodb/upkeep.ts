/** Regular work on records that are due: `sweep` for lapsed leases, `reap` for expired records. */
import { decideReap, decideSweep, toSwept } from '../../core/record/decide.ts'
import type { ReapReport, ReapRequest, SweptRecord } from '../../core/store/store.ts'
import { REFUSED_UNTIL } from './items.ts'
import { checkResult } from './request-checks.ts'
import type { RecordMoves, Step } from './moves.ts'
import type { StoreTime } from './driver/service-time.ts'
import type { StateIndex } from './shards/state-index.ts'

/** Records that one sweep or reap moves at once. */
export const MOVES_AT_ONCE = 16

/** Safe to run on every node at once: each move is conditional on the version of its record. */
export class Upkeep {
  readonly #moves: RecordMoves
  readonly #index: StateIndex
  readonly #time: StoreTime

  constructor(moves: RecordMoves, index: StateIndex, time: StoreTime) {
    this.#moves = moves
    this.#index = index
    this.#time = time
  }

  /**
   * Reads every record under lease, and starts to count the leases that it has not seen before.
   * Moves the records that have not changed for a whole lease. If there are too many to watch, it
   * watches only the oldest, and leaves half of the sightings to claims: if it watched all of them,
   * each would be forgotten before its lease was over, and none would ever lapse.
   */
  async sweep(limit: number): Promise<SweptRecord[]> {
    const max = Math.floor(this.#moves.sightings.countMax / 2)
    const entries = await this.#index.nextPass('in_progress', max)
    // The index may lag behind the table. That is safe: a version in the index was written before
    // now, and a record that has another version in the table is not moved.
    const lapsed = entries.filter(
      ({ identity, version, leaseMs }) => this.#moves.sightings.ageMs(identity, version) >= leaseMs,
    )
    return this.#moveEach(identitiesOf(lapsed), limit, (record, nowMs) => {
      const write = record && decideSweep(record, nowMs)
      return write === undefined ? NOTHING : { outcome: toSwept(write), write }
    })
  }

  async reap(request: ReapRequest): Promise<ReapReport> {
    if (request.abandoned !== undefined) checkResult(request.abandoned.result)
    const moved = await this.#moveEach(
      await this.#expired(request),
      request.limit,
      (record, nowMs) => {
        const decision = record && decideReap(record, request, nowMs)
        if (decision === undefined) return NOTHING
        const { kind, write } = decision
        return write === undefined ? { outcome: kind, isRemoval: true } : { outcome: kind, write }
      },
    )
    const report = { removed: 0, expired: 0, abandoned: 0 }
    for (const kind of moved) report[kind]++
    return report
  }

  /**
   * Completed records are ordered by expiry in the index, and expired ones by the end of their
   * refusal. Other states need a full pass.
   */
  async #expired({ limit, abandoned }: ReapRequest): Promise<string[]> {
    const nowMs = this.#time.nowMs()
    const due = { limit, untilMs: nowMs }
    const completed = await this.#index.oldest('completed', due)
    const refused = await this.#index.oldest(REFUSED_UNTIL, due)
    const released = await this.#index.nextPass('failed_retryable')
    const accepted = abandoned === undefined ? [] : await this.#index.nextPass('pending')
    const others = [...released, ...accepted].filter(({ expiresAtMs }) => expiresAtMs <= nowMs)
    // The index may list a record that changes its state under both states.
    return [...new Set(identitiesOf([...completed, ...refused, ...others]))]
  }

  async #moveEach<Outcome>(
    identities: readonly string[],
    limit: number,
    decide: (...of: Parameters<Decide>) => Step<Outcome | undefined>,
  ): Promise<Outcome[]> {
    const moved: Outcome[] = []
    for (let at = 0; at < identities.length && moved.length < limit;) {
      const count = Math.min(MOVES_AT_ONCE, limit - moved.length)
      const tried = await Promise.allSettled(
        identities
          .slice(at, at + count)
          .map((identity) => this.#moves.make({ identity, from: 'read', decide })),
      )
      for (const one of tried) {
        if (one.status === 'fulfilled' && one.value.outcome !== undefined) {
          moved.push(one.value.outcome)
        }
      }
      const failed = tried.find((one) => one.status === 'rejected')
      // Moved records are reported even if another record failed, because no later pass reports
      // them. If the failure lasts, the next pass meets it again.
      if (failed !== undefined && moved.length === 0) throw failed.reason
      if (failed !== undefined) return moved
      at += count
    }
    return moved
  }
}

type Decide = Parameters<RecordMoves['make']>[0]['decide']

const NOTHING = { outcome: undefined } as const

function identitiesOf(entries: readonly { readonly identity: string }[]): string[] {
  return entries.map(({ identity }) => identity)
}
