import { decideReap, decideSweep, toSwept } from '../../core/decide.ts'
import type { ReapReport, ReapRequest, SweptRecord } from '../../core/store.ts'
import { checkResult } from './checks.ts'
import type { RecordMoves, Step } from './record-moves.ts'
import type { StoreTime } from './service-time.ts'
import type { StateIndex } from './state-index.ts'

/** Records moved at the same time. */
export const MOVES_AT_ONCE = 16

/** What becomes of records that nobody asks for. Safe on every node at once. */
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
   * Looks at every record under lease, and so begins to count those that it has never seen. What
   * it has seen unchanged for a whole lease, it moves on. Where there are too many to keep an eye
   * on, it keeps to the oldest, and leaves half of its memory to claims: if it looked at all of
   * them, each would be forgotten before its lease was over, and none would ever lapse.
   */
  async sweep(limit: number): Promise<SweptRecord[]> {
    const max = Math.floor(this.#moves.sightings.countMax / 2)
    const entries = await this.#index.nextPass('in_progress', max)
    // From the index, which may be behind: a version that it still shows was written before now,
    // and one that the table has no more is not moved.
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

  /** Results are listed by their expiry; the others have to be looked through. */
  async #expired({ limit, abandoned }: ReapRequest): Promise<string[]> {
    const nowMs = this.#time.nowMs()
    const completed = await this.#index.oldest('completed', { limit, untilMs: nowMs })
    const released = await this.#index.nextPass('failed_retryable')
    const accepted = abandoned === undefined ? [] : await this.#index.nextPass('pending')
    const others = [...released, ...accepted].filter(({ expiresAtMs }) => expiresAtMs <= nowMs)
    // A record may be on its way from one state to the other, and so be in both.
    return [...new Set(identitiesOf([...completed, ...others]))]
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
      // What was moved is reported even where a neighbour failed, for nobody else will report it.
      // The next pass meets the failure again, if it lasts.
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
