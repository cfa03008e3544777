import type { Clock } from '../../core/time/clock.ts'
import { toHistory, type Decision } from '../../core/record/decide.ts'
import { newToken } from '../../core/record/identity.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import { toHistoryItem, type Ending, type StoredItem } from './items.ts'
import type { Calls } from './calls.ts'
import { Results } from './results.ts'
import type { StoreTime } from './driver/service-time.ts'
import { RecentKeys, Sightings } from './sightings.ts'
import type { RowWrites } from './driver/write-attempts.ts'

/** A decision of `core/record/decide.ts`, or the removal of the record. */
export type Step<Outcome> = Decision<Outcome> & { readonly isRemoval?: boolean }

export interface Move<Outcome> {
  readonly identity: string
  readonly decide: (record: StoredRecord | undefined, nowMs: number) => Step<Outcome>
  /** Length of the lease that the move gives. Absent: the lease keeps its length. */
  readonly leaseMs?: number
  /**
   * The record that the first try assumes. `read`: the record in the table. `known`: the last
   * write of this process, if it remembers it. `free`: no record.
   */
  readonly from: 'read' | 'known' | 'free'
  /** Records whether the writes may have taken effect. */
  readonly writes?: RowWrites
}

export interface MoveResult<Outcome> {
  readonly outcome: Outcome
  /** The record after the move. */
  readonly stored: StoredItem | undefined
}

/** A record as it was read, and with its lease as this process counts it. */
interface JudgedItem {
  readonly stored: StoredItem | undefined
  readonly judged: StoredRecord | undefined
}

export interface RecordMovesOptions {
  readonly calls: Calls
  readonly clock: Clock
  readonly time: StoreTime
  readonly history: boolean
  /** Whether the service removes expired items. */
  readonly ttl: boolean
  /** The largest result, in bytes, that is stored in the item of its record. */
  readonly inlineBytesMax: number
  /** How many records under lease this process watches at most. */
  readonly sightingsMax?: number
}

/** Records under lease that this process remembers from its writes, to settle each in one call. */
const KNOWN_MAX = 10_000

/** Each failed try means that another call has changed the record. */
const TRIES = 20

/** A margin after the expiry: the service must not remove an item too early by any node's clock. */
const TTL_AFTER_S = 24 * 60 * 60

/**
 * Makes every change of a record: reads or assumes it (`Move.from`), decides with
 * `core/record/decide.ts`, and writes on condition that the record has not changed since. If it has
 * changed, starts again with the current record.
 *
 * Every write has a new random version. If the condition fails and the record has this version, an
 * earlier attempt of the same write took effect: its answer was lost, and the SDK tried again.
 */
export class RecordMoves {
  readonly results: Results
  readonly sightings: Sightings
  readonly #options: RecordMovesOptions
  readonly #known = new Map<string, StoredItem>()
  readonly #completed = new RecentKeys()

  constructor(options: RecordMovesOptions) {
    this.#options = options
    this.results = new Results(options.calls, options.inlineBytesMax)
    this.sightings = new Sightings(options.clock, options.sightingsMax)
  }

  async make<Outcome>(move: Move<Outcome>): Promise<MoveResult<Outcome>> {
    let { stored, isSure } = await this.#start(move)
    for (let tries = 1; tries <= TRIES; tries++) {
      const nowMs = this.#options.time.nowMs()
      const judged = stored && this.#judged(stored, nowMs)
      const step = move.decide(judged, nowMs)
      if (step.write === undefined && step.isRemoval !== true) {
        if (isSure) return this.#moved(move, step.outcome, stored)
        // A remembered record may be used for a conditional write, but never to answer without one.
        stored = await this.#options.calls.get(move.identity)
        isSure = true
        continue
      }
      const tried = await this.#write(move, step, { stored, judged })
      if (tried.isWritten) return this.#moved(move, step.outcome, tried.stored)
      stored = tried.stored
      isSure = true
    }
    throw new Error(`the record changed during each of ${TRIES} tries to write it: try again later`)
  }

  #moved<Outcome>(
    { identity }: Move<Outcome>,
    outcome: Outcome,
    stored: StoredItem | undefined,
  ): MoveResult<Outcome> {
    if (stored?.record.state === 'completed') this.#completed.add(identity)
    else this.#completed.forget(identity)
    return { outcome, stored }
  }

  /**
   * Reads the record if the service's time is unknown: nothing can be decided without the time, and
   * any answer of the service brings it.
   */
  async #start({
    identity,
    from,
  }: Move<unknown>): Promise<{ stored: StoredItem | undefined; isSure: boolean }> {
    const known = from === 'known' ? this.#known.get(identity) : undefined
    // A key that this process has seen in use is probably not free, and a read costs less than a
    // refused write.
    const isInUse = this.sightings.has(identity) || this.#completed.has(identity)
    const isGuess = known !== undefined || (from === 'free' && !isInUse)
    if (isGuess && this.#options.time.isKnown()) return { stored: known, isSure: false }
    return { stored: await this.#options.calls.get(identity), isSure: true }
  }

  /**
   * The record with the end of its lease as this process counts it: the whole length of the lease
   * from when it first saw this version.
   */
  #judged({ record, version, leaseMs }: StoredItem, nowMs: number): StoredRecord {
    if (record.state !== 'in_progress') return record
    const leftMs = leaseMs - this.sightings.ageMs(record.identity, version)
    return { ...record, leaseUntilMs: nowMs + Math.ceil(leftMs) }
  }

  async #write(
    move: Move<unknown>,
    step: Step<unknown>,
    { stored, judged }: JudgedItem,
  ): Promise<{ isWritten: boolean; stored: StoredItem | undefined }> {
    const { calls, history } = this.#options
    const ending = stored && endingOf(stored, step)
    if (history && ending !== undefined) await this.#retire(stored!, ending)
    const isFreed = ending !== undefined && !history
    if (step.write === undefined) {
      const outcome = await calls.remove(stored!)
      if (outcome.kind === 'conflict') return { isWritten: false, stored: outcome.found }
      this.#note(undefined, move)
      if (isFreed) await this.results.discard(stored!)
      return { isWritten: true, stored: undefined }
    }

    const next = await this.results.store(this.#next(move, step.write, { stored, judged }))
    const outcome = await calls.put(next, stored, move.writes)
    if (outcome.kind === 'conflict' && outcome.found?.version !== next.version) {
      // The version has changed, so no delayed copy of this write can take effect: its parts stay
      // unused.
      await this.results.discard(next)
      return { isWritten: false, stored: outcome.found }
    }
    this.#note(next, move)
    if (isFreed) await this.results.discard(stored!)
    return { isWritten: true, stored: next }
  }

  #next(
    { leaseMs }: Move<unknown>,
    write: StoredRecord,
    { stored, judged }: JudgedItem,
  ): StoredItem {
    // Keeps the stored end of the lease, which is the holder's, instead of this process's count.
    const isCounted = stored !== undefined && write.leaseUntilMs === judged?.leaseUntilMs
    const record = isCounted ? { ...write, leaseUntilMs: stored.record.leaseUntilMs } : write
    return {
      record,
      version: newToken(),
      leaseMs: leaseMs ?? stored?.leaseMs ?? 0,
      parts: undefined,
      ttlS: this.#ttlOf(write),
    }
  }

  #ttlOf(record: StoredRecord): number | undefined {
    const goneAtMs = this.#options.ttl ? mayBeGoneAtMs(record) : undefined
    return goneAtMs === undefined ? undefined : Math.ceil(goneAtMs / 1000) + TTL_AFTER_S
  }

  /**
   * Writes the copy for the history before the record is removed or loses its result, under a key
   * that a repetition uses again. After a crash in between, the next process that makes the move
   * repeats both.
   */
  async #retire(stored: StoredItem, ending: Ending): Promise<void> {
    await this.results.keep(stored)
    const copy = { ...stored, record: toHistory(stored.record), ttlS: undefined }
    await this.#options.calls.putCopy(toHistoryItem(copy, ending))
  }

  /** After the answer to a write: this process has seen its version. */
  #note(next: StoredItem | undefined, { identity, from }: Move<unknown>): void {
    this.#known.delete(identity)
    if (next?.record.state !== 'in_progress') {
      // The holder has settled the record, so no lease is left to count. After a lapse the count is
      // kept: concurrent calls in this process may have an older answer and would count it anew.
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

/** Returns what the step ends. An `expired` record has ended, and is in the history already. */
function endingOf({ record }: StoredItem, { write }: Step<unknown>): Ending | undefined {
  if (record.state === 'expired') return undefined
  const isReplaced = write?.recordId !== record.recordId
  if (write === undefined || isReplaced || write.state === 'expired') return 'record'
  const isDiscard = record.state === 'completed' && write.state === 'failed_retryable'
  return isDiscard ? 'result' : undefined
}

/**
 * When the record may simply disappear. `undefined`: while it is in use or `unknown`, and while its
 * key stays refused.
 */
function mayBeGoneAtMs(record: StoredRecord): number | undefined {
  const { state, afterExpiry, expiresAtMs, reconcileAtMs } = record
  if (state === 'expired') return reconcileAtMs
  const mayExpire = state === 'completed' || state === 'failed_retryable'
  return mayExpire && afterExpiry === 'new' ? expiresAtMs : undefined
}
