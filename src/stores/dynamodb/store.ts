import { systemClock } from '../../core/time/clock.ts'
import { toView } from '../../core/record/decide.ts'
import type { StoreBatching } from '../../core/store/batching.ts'
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
import { Calls } from './calls.ts'
import { Claims } from './claims.ts'
import { warnOfFewSockets } from './driver/agents.ts'
import { timeOf, type StoreTime } from './driver/service-time.ts'
import { storeFailed } from './failures.ts'
import { findIdentity, History } from './history.ts'
import { lanesOf, recordKey, REFUSED_UNTIL } from './items.ts'
import { RecordMoves } from './moves.ts'
import {
  resolveDynamodbStoreOptions,
  type DynamodbStoreOptions,
  type ResolvedDynamodbStoreOptions,
} from './options.ts'
import { PARTS_MISSING, RESULT_TRIES } from './results.ts'
import { Settlements } from './settlements.ts'
import { StateIndex } from './shards/state-index.ts'
import { MOVES_AT_ONCE, Upkeep } from './upkeep.ts'

/** Calls of each kind, such as claims, that run at once. */
const CALLS_MAX = 64

/** Claims, settlements, renewals and releases of lost claims, and one sweep and one reap. */
const CALLS_AT_ONCE = 4 * CALLS_MAX + 2 * MOVES_AT_ONCE

/** An identity that no record has: reading it costs little and brings the time of the service. */
const ABSENT_IDENTITY = '0'.repeat(32)

/**
 * Keeps records in a DynamoDB table: durable, and shared by all processes that use the table.
 * Create the table that `tableDefinition()` describes first. The store never destroys the client.
 */
export function dynamodbStore(options: DynamodbStoreOptions): Store {
  return new ItemStore(resolveDynamodbStoreOptions(options))
}

class ItemStore implements Store {
  readonly name = 'dynamodb'
  readonly batching: StoreBatching
  readonly history?: (query: HistoryQuery, signal?: AbortSignal) => Promise<RecordView[]>
  readonly now?: (signal?: AbortSignal) => Promise<Date>
  readonly #calls: Calls
  readonly #time: StoreTime
  readonly #moves: RecordMoves
  readonly #claims: Claims
  readonly #settlements: Settlements
  readonly #index: StateIndex
  readonly #upkeep: Upkeep

  constructor(options: ResolvedDynamodbStoreOptions) {
    const { client, table: name, history, shards, inlineBytesMax, clock } = options
    // In a conditional write of several items, one failed condition fails all of them. So each row
    // is its own call, and no row waits for the slowest of a batch. One tenant gets at most 48 of
    // the 64 calls. Throttling of some keys only opens the breaker of their lane.
    this.batching = { rowsMax: 1, flushesMax: CALLS_MAX, lanes: lanesOf(shards) }
    warnOfFewSockets(client, CALLS_AT_ONCE)
    this.#calls = new Calls(client, { name, shards, clock })
    this.#time = timeOf(client, clock)
    this.#moves = new RecordMoves({
      calls: this.#calls,
      clock: clock ?? systemClock,
      time: this.#time,
      history,
      inlineBytesMax,
      // The service compares TTLs with its own clock, and would remove the items of a test clock.
      ttl: !history && clock === undefined,
    })
    this.#claims = new Claims(this.#calls, this.#moves)
    this.#settlements = new Settlements(this.#calls, this.#moves)
    this.#index = new StateIndex(this.#calls)
    this.#upkeep = new Upkeep(this.#moves, this.#index, this.#time)
    if (history) {
      const past = new History(this.#calls, this.#moves.results)
      this.history = (query, signal) =>
        this.#ask('read the history', signal, () => past.read(query))
    }
    if (clock === undefined)
      this.now = (signal) => this.#ask('tell the time', signal, () => this.#now())
  }

  claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    return this.#claims.claim(requests, signal)
  }

  settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    return this.#settlements.settle(settlements, signal)
  }

  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    return this.#claims.renew(renewals, signal)
  }

  resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    return this.#settlements.resolve(verdicts, signal)
  }

  discard(discard: Discard, signal?: AbortSignal): Promise<DiscardOutcome> {
    return this.#settlements.discard(discard, signal)
  }

  sweep({ limit }: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]> {
    return this.#ask('sweep', signal, () => this.#upkeep.sweep(limit))
  }

  reap(request: ReapRequest, signal?: AbortSignal): Promise<ReapReport> {
    return this.#ask('reap', signal, async () => {
      await this.#now()
      return this.#upkeep.reap(request)
    })
  }

  read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined> {
    return this.#ask('read', signal, () => this.#read(ref))
  }

  list(query: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    return this.#ask('list', signal, () => this.#list(query))
  }

  async #list({ state, limit }: ListQuery): Promise<RecordView[]> {
    const parts = state === 'expired' ? ([state, REFUSED_UNTIL] as const) : [state]
    const read = await Promise.all(parts.map((part) => this.#index.oldest(part, { limit })))
    // A record that changes its state may be in two parts.
    const identities = [...new Set(read.flat().map(({ identity }) => identity))]
    const found = await this.#calls.getListed(identities)
    const byIdentity = new Map(found.map(({ record }) => [record.identity, record]))
    const records = identities.flatMap((identity) => {
      const record = byIdentity.get(identity)
      // The index lags behind the table: the record was removed, or changed its state.
      return record?.state === state ? [record] : []
    })
    // The parts of `expired` have different orders.
    if (parts.length > 1) records.sort((a, b) => a.lastRunAtMs - b.lastRunAtMs)
    return records.slice(0, limit).map(toView)
  }

  async #read(ref: RecordRef): Promise<RecordView | undefined> {
    const identity = ref.identity ?? (await findIdentity(this.#calls, ref.recordId))
    if (identity === undefined) return undefined
    for (let tries = 1; tries <= RESULT_TRIES; tries++) {
      const stored = await this.#calls.get(identity)
      const isMeant = ref.identity !== undefined || stored?.record.recordId === ref.recordId
      if (stored === undefined || !isMeant) return undefined
      const result = await this.#moves.results.load(stored)
      if (result !== 'gone') return { ...toView(stored.record), result }
      // By TTL the service removes a record and its parts in any order, days after the expiry.
      const isExpired = stored.ttlS !== undefined && stored.record.expiresAtMs <= this.#time.nowMs()
      if (isExpired) return toView(stored.record)
    }
    throw new Error(PARTS_MISSING)
  }

  #ask<Answer>(
    operation: string,
    signal: AbortSignal | undefined,
    run: () => Promise<Answer>,
  ): Promise<Answer> {
    return this.#calls.until(signal, async () => {
      try {
        return await run()
      } catch (error) {
        throw storeFailed(operation, error)
      }
    })
  }

  async #now(): Promise<Date> {
    // Reads every time, because the caller adds the time since its question. A time extrapolated
    // from an answer that was slow minutes ago would lag by that delay without any sign of it.
    await this.#calls.getItem(recordKey(ABSENT_IDENTITY))
    return new Date(this.#time.nowMs())
  }
}
