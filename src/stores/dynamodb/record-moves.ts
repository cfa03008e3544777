import type { Clock } from '../../core/clock.ts'
import { toHistory, type Decision } from '../../core/decide.ts'
import { newToken } from '../../core/identity.ts'
import type { StoredRecord } from '../../core/record.ts'
import { toHistoryItem, type Kept } from './items.ts'
import { RecentKeys } from './recent-keys.ts'
import type { RecordTable } from './record-table.ts'
import { Results } from './results.ts'
import type { StoreTime } from './service-time.ts'
import { Sightings } from './sightings.ts'
import type { RowWrites } from './write-attempts.ts'

/** What a record becomes: as `core/decide.ts` says it, or removed. */
export type Step<Outcome> = Decision<Outcome> & { readonly isRemoval?: boolean }

export interface Move<Outcome> {
  readonly identity: string
  readonly decide: (record: StoredRecord | undefined, nowMs: number) => Step<Outcome>
  /** The length of the lease that the move gives. Without it, a lease keeps its length. */
  readonly leaseMs?: number
  /**
   * What the first try goes by: `read`, the table; `known`, what this process has written last, if
   * it remembers; `free`, the guess that there is no record.
   */
  readonly from: 'read' | 'known' | 'free'
  /** Learns what becomes of the writes. */
  readonly writes?: RowWrites
}

export interface Moved<Outcome> {
  readonly outcome: Outcome
  /** The record as it now is. */
  readonly kept: Kept | undefined
}

/** A record as it was read, and as this process judges it. */
interface Found {
  readonly kept: Kept | undefined
  readonly judged: StoredRecord | undefined
}

export interface RecordMovesOptions {
  readonly table: RecordTable
  readonly clock: Clock
  readonly time: StoreTime
  readonly history: boolean
  /** Whether the service removes what has expired. */
  readonly ttl: boolean
  /** The largest result that lies in the item of its record. */
  readonly inlineBytesMax: number
  /** How many records are kept an eye on. */
  readonly sightingsMax?: number
}

/** A record under lease that this process has written is remembered, to be settled in one call. */
const KNOWN_MAX = 10_000

/** Each try that fails means that somebody else has moved the record. */
const TRIES = 20

/** The service removes items up to days late; it must never be early for anybody's clock. */
const TTL_AFTER_S = 24 * 60 * 60

/**
 * The one way records change: read, decide as `core/decide.ts` does, write on condition that the
 * record is still what was read; where it is not, begin again with what is there now.
 *
 * Every write brings a new random version. A condition that fails because an earlier try of the
 * same write had landed (its answer was lost, and the SDK tried again) is known by it.
 */
export class RecordMoves {
  readonly results: Results
  readonly sightings: Sightings
  readonly #options: RecordMovesOptions
  readonly #known = new Map<string, Kept>()
  readonly #completed = new RecentKeys()

  constructor(options: RecordMovesOptions) {
    this.#options = options
    this.results = new Results(options.table, options.inlineBytesMax)
    this.sightings = new Sightings(options.clock, options.sightingsMax)
  }

  async make<Outcome>(move: Move<Outcome>): Promise<Moved<Outcome>> {
    let { kept, isSure } = await this.#start(move)
    for (let tries = 1; tries <= TRIES; tries++) {
      const nowMs = this.#options.time.nowMs()
      const judged = kept && this.#judged(kept, nowMs)
      const step = move.decide(judged, nowMs)
      if (step.write === undefined && step.isRemoval !== true) {
        if (isSure) return this.#moved(move, step.outcome, kept)
        // Memory may be used to try a write, which is conditional; never to answer without one.
        kept = await this.#options.table.get(move.identity)
        isSure = true
        continue
      }
      const tried = await this.#write(move, step, { kept, judged })
      if (tried.isWritten) return this.#moved(move, step.outcome, tried.kept)
      kept = tried.kept
      isSure = true
    }
    throw new Error(`a record was changed by others ${TRIES} times in a row`)
  }

  #moved<Outcome>(
    { identity }: Move<Outcome>,
    outcome: Outcome,
    kept: Kept | undefined,
  ): Moved<Outcome> {
    if (kept?.record.state === 'completed') this.#completed.add(identity)
    else this.#completed.forget(identity)
    return { outcome, kept }
  }

  /** Without the service's time nothing can be decided, and any answer of the service has it. */
  async #start({
    identity,
    from,
  }: Move<unknown>): Promise<{ kept: Kept | undefined; isSure: boolean }> {
    const known = from === 'known' ? this.#known.get(identity) : undefined
    // A key that was seen in use is hardly free, and a read costs less than a refused write.
    const isInUse = this.sightings.has(identity) || this.#completed.has(identity)
    const isGuess = known !== undefined || (from === 'free' && !isInUse)
    if (isGuess && this.#options.time.isKnown()) return { kept: known, isSure: false }
    return { kept: await this.#options.table.get(identity), isSure: true }
  }

  /**
   * The record with the end of its lease as this process counts it: from when it first saw this
   * very version, for the whole length of the lease.
   */
  #judged({ record, version, leaseMs }: Kept, nowMs: number): StoredRecord {
    if (record.state !== 'in_progress') return record
    const leftMs = leaseMs - this.sightings.ageMs(record.identity, version)
    return { ...record, leaseUntilMs: nowMs + Math.ceil(leftMs) }
  }

  async #write(
    move: Move<unknown>,
    step: Step<unknown>,
    { kept, judged }: Found,
  ): Promise<{ isWritten: boolean; kept: Kept | undefined }> {
    const { table, history } = this.#options
    const isEnd = kept !== undefined && endsRecord(kept, step)
    if (history && isEnd) await this.#retire(kept)
    const isFreed = isEnd && !history
    if (step.write === undefined) {
      const outcome = await table.remove(kept!)
      if (outcome.kind === 'conflict') return { isWritten: false, kept: outcome.found }
      this.#note(undefined, move)
      if (isFreed) await this.results.discard(kept)
      return { isWritten: true, kept: undefined }
    }

    const next = await this.results.store(this.#next(move, step.write, { kept, judged }))
    const outcome = await table.put(next, kept, move.writes)
    if (outcome.kind === 'conflict' && outcome.found?.version !== next.version) {
      // No late copy of this write can land any more, so nobody will ever refer to its parts.
      await this.results.discard(next)
      return { isWritten: false, kept: outcome.found }
    }
    this.#note(next, move)
    if (isFreed) await this.results.discard(kept)
    return { isWritten: true, kept: next }
  }

  #next({ leaseMs }: Move<unknown>, write: StoredRecord, { kept, judged }: Found): Kept {
    // The end of a lease that this process has counted is its own; the holder's stays on record.
    const isCounted = kept !== undefined && write.leaseUntilMs === judged?.leaseUntilMs
    const record = isCounted ? { ...write, leaseUntilMs: kept.record.leaseUntilMs } : write
    return {
      record,
      version: newToken(),
      leaseMs: leaseMs ?? kept?.leaseMs ?? 0,
      parts: undefined,
      ttlS: this.#ttlOf(write),
    }
  }

  /**
   * Only where the end of the record leaves nothing behind: not while it is in use or `unknown`,
   * not where its key stays refused, and not where a history is to be written first.
   */
  #ttlOf({ state, afterExpiry, expiresAtMs }: StoredRecord): number | undefined {
    const mayGo = state === 'completed' || state === 'failed_retryable'
    if (!this.#options.ttl || !mayGo || afterExpiry !== 'new') return undefined
    return Math.ceil(expiresAtMs / 1000) + TTL_AFTER_S
  }

  /**
   * Put before the record goes, under a name that a repeat uses again: a crash in between leaves a
   * record that is in the history already, and the next one to come by does it over.
   */
  async #retire(kept: Kept): Promise<void> {
    await this.results.keep(kept)
    await this.#options.table.putCopy(
      toHistoryItem({ ...kept, record: toHistory(kept.record), ttlS: undefined }),
    )
  }

  /** The write has been answered: from now on its version counts as seen. */
  #note(next: Kept | undefined, { identity, from }: Move<unknown>): void {
    this.#known.delete(identity)
    if (next?.record.state !== 'in_progress') {
      // Settled by its holder, so there is nothing more to count. Where a lease has lapsed, others
      // here may hold an older answer, and must not begin to count anew.
      if (from === 'known') this.sightings.forget(identity)
      return
    }
    this.sightings.ageMs(identity, next.version)
    this.#known.set(identity, next)
    if (this.#known.size > KNOWN_MAX) {
      const [oldest] = this.#known.keys()
      this.#known.delete(oldest!)
    }
  }
}

/** What is already a mere reminder of a record was kept when it became one. */
function endsRecord({ record }: Kept, { write }: Step<unknown>): boolean {
  if (record.state === 'expired') return false
  return write === undefined || write.recordId !== record.recordId || write.state === 'expired'
}
