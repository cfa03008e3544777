import { systemClock, type Clock } from '../../core/time/clock.ts'
import {
  decideClaim,
  decideReap,
  decideRenew,
  decideResolve,
  decideSettle,
  decideSweep,
  toHistory,
  toSwept,
  toView,
} from '../../core/record/decide.ts'
import { decideDiscard } from '../../core/record/decide-discard.ts'
import { decideShorten } from '../../core/record/shorten-lease.ts'
import { flag, rejectUnknownOptions } from '../../core/options.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Discard,
  DiscardOutcome,
  HistoryQuery,
  ListQuery,
  ReapReport,
  ReapRequest,
  RecordRef,
  RecordView,
  Renewal,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Store,
  SweptRecord,
  Verdict,
} from '../../core/store/store.ts'
import { warnOnce } from '../../core/warn.ts'

export interface MemoryStoreOptions {
  /**
   * Keeps expired records in a history, for audit, instead of removing them. The history grows
   * until the process ends.
   *
   * @default false
   */
  history?: boolean

  /** The clock of the store, for tests. @default the system clock */
  clock?: Clock
}

/**
 * Keeps records in the memory of this process, for tests and experiments. Records are lost at a
 * restart and no other process sees them, so this store makes no production API safe to retry.
 */
export function memoryStore(options: MemoryStoreOptions = {}): Store {
  rejectUnknownOptions('memoryStore', options, ['clock', 'history'])
  const history = flag('memoryStore: history', options.history, false)
  if (options.clock === undefined && process.env['NODE_ENV'] === 'production') {
    warnOnce(
      'memoryStore forgets every key when the process restarts and shares none with other ' +
        'processes: use a durable store (oncekey/sqlite, …) in production',
    )
  }
  const clock = options.clock ?? systemClock
  return new MemoryStore(clock, history)
}

class MemoryStore implements Store {
  readonly name = 'memory'
  readonly #clock: Clock
  readonly #records = new Map<string, StoredRecord>()

  readonly #expired: StoredRecord[] = []
  readonly history?: (query: HistoryQuery) => Promise<RecordView[]>

  constructor(clock: Clock, hasHistory: boolean) {
    this.#clock = clock
    if (hasHistory) this.history = async (query) => this.#listExpired(query)
  }

  // No method below awaits between its read and its write: this replaces a lock.

  async claim(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
    const nowMs = this.#clock.nowMs()
    return requests.map((request) => {
      const record = this.#records.get(request.identity)
      const { outcome, write } = decideClaim(record, request, nowMs)
      const isReplaced = write !== undefined && record?.recordId !== write.recordId
      if (record !== undefined && isReplaced) this.#retire(record)
      this.#apply(write, outcome)
      return outcome.kind === 'completed' ? { ...outcome, result: copyOf(outcome.result) } : outcome
    })
  }

  async settle(settlements: readonly Settlement[]): Promise<SettleOutcome[]> {
    const nowMs = this.#clock.nowMs()
    return settlements.map((settlement) => {
      const record = this.#records.get(settlement.lease.identity)
      const decision = decideSettle(record, copyResult(settlement), nowMs)
      return this.#apply(decision.write, decision.outcome)
    })
  }

  async renew(renewals: readonly Renewal[]): Promise<boolean[]> {
    const nowMs = this.#clock.nowMs()
    return renewals.map((renewal) => {
      const write = decideRenew(this.#records.get(renewal.identity), renewal, nowMs)
      return this.#apply(write, write !== undefined)
    })
  }

  async resolve(verdicts: readonly Verdict[]): Promise<ResolveOutcome[]> {
    const nowMs = this.#clock.nowMs()
    return verdicts.map((verdict) => {
      const decision = decideResolve(this.#find(verdict.ref), verdict, nowMs)
      return this.#apply(decision.write, decision.outcome)
    })
  }

  async sweep({ limit }: { readonly limit: number }): Promise<SweptRecord[]> {
    const nowMs = this.#clock.nowMs()
    const swept: SweptRecord[] = []
    for (const record of this.#records.values()) {
      if (swept.length === limit) break
      const write = decideSweep(record, nowMs)
      if (write !== undefined) swept.push(this.#apply(write, toSwept(write)))
      else this.#apply(decideShorten(record, nowMs), undefined)
    }
    return swept
  }

  async reap(request: ReapRequest): Promise<ReapReport> {
    const nowMs = this.#clock.nowMs()
    const report = { removed: 0, expired: 0, abandoned: 0 }
    let left = request.limit
    for (const record of this.#records.values()) {
      if (left === 0) break
      const decision = decideReap(record, request, nowMs)
      if (decision === undefined) continue
      if (decision.kind !== 'abandoned') this.#retire(record)
      if (decision.write === undefined) this.#records.delete(record.identity)
      else this.#apply(decision.write, undefined)
      report[decision.kind]++
      left--
    }
    return report
  }

  async read(ref: RecordRef): Promise<RecordView | undefined> {
    const record = this.#find(ref)
    return record && { ...toView(record), result: record.result && copyOf(record.result) }
  }

  async list({ state, limit }: ListQuery): Promise<RecordView[]> {
    return [...this.#records.values()]
      .filter((record) => record.state === state)
      .sort((a, b) =>
        state === 'completed' ? a.expiresAtMs - b.expiresAtMs : a.lastRunAtMs - b.lastRunAtMs,
      )
      .slice(0, limit)
      .map((record) => ({ ...toView(record), result: undefined }))
  }

  async discard(discard: Discard): Promise<DiscardOutcome> {
    const record = this.#find(discard.ref)
    const { outcome, write } = decideDiscard(record, discard)
    if (record !== undefined && write !== undefined) this.#retire(record)
    return this.#apply(write, outcome)
  }

  /** An `expired` record was added to the history when it expired. */
  #retire(record: StoredRecord): void {
    if (this.history !== undefined && record.state !== 'expired') {
      this.#expired.push(toHistory(record))
    }
  }

  #listExpired({ ref, limit }: HistoryQuery): RecordView[] {
    const isWanted = (record: StoredRecord) =>
      ref.identity === undefined
        ? record.recordId === ref.recordId
        : record.identity === ref.identity
    return this.#expired
      .filter(isWanted)
      .toReversed()
      .slice(0, limit)
      .map((record) => toView(record))
  }

  #find(ref: RecordRef): StoredRecord | undefined {
    if (ref.identity !== undefined) return this.#records.get(ref.identity)
    for (const record of this.#records.values()) {
      if (record.recordId === ref.recordId) return record
    }
    return undefined
  }

  #apply<Outcome>(write: StoredRecord | undefined, outcome: Outcome): Outcome {
    if (write !== undefined) this.#records.set(write.identity, write)
    return outcome
  }
}

/** Copies the result, because the caller may reuse its buffer. */
function copyResult(settlement: Settlement): Settlement {
  if (settlement.kind !== 'complete') return settlement
  return { ...settlement, result: copyOf(settlement.result) }
}

/** Avoids `slice`: on a Buffer it returns a view of the same bytes. */
function copyOf(bytes: Uint8Array): Uint8Array {
  return new Uint8Array(bytes)
}
