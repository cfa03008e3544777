import { systemClock } from '../../core/clock.ts'
import { decideClaim, decideRenew, decideResolve, decideSettle, toView } from '../../core/decide.ts'
import { inRounds } from '../../core/rounds.ts'
import { Slots } from '../../core/slots.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
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
  StoreBatching,
  SweptRecord,
  Verdict,
} from '../../core/store.ts'
import { warnOfFewSockets } from './agents.ts'
import { checkClaim, checkRenewal, checkSettlement, checkVerdict } from './checks.ts'
import { NothingWritten, storeFailed } from './failures.ts'
import { findById, History } from './history.ts'
import { lanesOf, recordKey } from './items.ts'
import {
  resolveDynamodbStoreOptions,
  type DynamodbStoreOptions,
  type ResolvedDynamodbStoreOptions,
} from './options.ts'
import { RecordMoves } from './record-moves.ts'
import { RecordTable } from './record-table.ts'
import { timeOf, type StoreTime } from './service-time.ts'
import { StateIndex } from './state-index.ts'
import { MOVES_AT_ONCE, Upkeep } from './upkeep.ts'
import { RowWrites } from './write-attempts.ts'

/** Calls of each kind, such as claims, that are under way at once. */
const CALLS_MAX = 64

/** Claims, results, renewals and releases of lost claims; beside them a sweep and a reap. */
const CALLS_AT_ONCE = 4 * CALLS_MAX + 2 * MOVES_AT_ONCE

/** Rows of one call that are under way at once. */
const ROWS_AT_ONCE = 16

/** How often a result is looked for whose parts are gone: its record was replaced meanwhile. */
const RESULT_TRIES = 3

const PARTS_MISSING = 'parts of a result are missing from the table'

/** No record has it: a read that is made only for the time in its answer. */
const NOBODY = '0'.repeat(32)

/**
 * Keeps records in a DynamoDB table: durable, and shared by everything that reaches it. Make the
 * table that `tableDefinition()` describes first. The client stays yours to destroy.
 */
export function dynamodbStore(options: DynamodbStoreOptions): Store {
  return new ItemStore(resolveDynamodbStoreOptions(options))
}

class ItemStore implements Store {
  readonly name = 'dynamodb'
  readonly batching: StoreBatching
  readonly history?: (query: HistoryQuery, signal?: AbortSignal) => Promise<RecordView[]>
  readonly now?: (signal?: AbortSignal) => Promise<Date>
  readonly #table: RecordTable
  readonly #time: StoreTime
  readonly #moves: RecordMoves
  readonly #index: StateIndex
  readonly #upkeep: Upkeep

  constructor(options: ResolvedDynamodbStoreOptions) {
    const { client, table: name, history, shards, inlineBytesMax, clock } = options
    // The service has no conditional write of several items that one of them could not fail for
    // all. So rows travel alone: none waits for the slowest of its batch. One tenant has at most 48
    // of the calls, and keys that are throttled have only the claims of their own lane refused.
    this.batching = { rowsMax: 1, flushesMax: CALLS_MAX, lanes: lanesOf(shards) }
    warnOfFewSockets(client, CALLS_AT_ONCE)
    this.#table = new RecordTable(client, { name, shards, clock })
    this.#time = timeOf(client, clock)
    this.#moves = new RecordMoves({
      table: this.#table,
      clock: clock ?? systemClock,
      time: this.#time,
      history,
      inlineBytesMax,
      // A test's clock is not the service's, which would remove what has just been written.
      ttl: !history && clock === undefined,
    })
    this.#index = new StateIndex(this.#table)
    this.#upkeep = new Upkeep(this.#moves, this.#index, this.#time)
    if (history) {
      const past = new History(this.#table, this.#moves.results)
      this.history = (query, signal) =>
        this.#ask('read the history', signal, () => past.read(query))
    }
    if (clock === undefined)
      this.now = (signal) => this.#ask('tell the time', signal, () => this.#now())
  }

  claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    const rows = { operation: 'claim', check: checkClaim, keyOf: identityOf }
    return this.#each(rows, requests, signal, (request) => this.#claim(request))
  }

  settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    const keyOf = ({ lease }: Settlement) => lease.identity
    const rows = { operation: 'settle', check: checkSettlement, keyOf }
    return this.#each(rows, settlements, signal, async (settlement) => {
      const { outcome } = await this.#moves.make({
        identity: settlement.lease.identity,
        from: 'known',
        decide: (record, nowMs) => decideSettle(record, settlement, nowMs),
      })
      return outcome
    })
  }

  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    const rows = { operation: 'renew', check: checkRenewal, keyOf: identityOf }
    return this.#each(rows, renewals, signal, async (renewal) => {
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
    })
  }

  async resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    const lookUp = { operation: 'resolve', check: checkVerdict, keyOf: refOf }
    // First of all, so that verdicts on one record come one after the other, however they name it.
    const found = await this.#each(lookUp, verdicts, signal, async (verdict) => ({
      verdict,
      identity: verdict.ref.identity ?? (await this.#identityOf(verdict.ref.recordId)),
    }))
    const keyOf = ({ identity, verdict }: Addressed) => identity ?? refOf(verdict)
    const rows = { operation: 'resolve', check: () => {}, keyOf }
    return this.#each(rows, found, signal, (addressed) => this.#resolve(addressed))
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
    return this.#ask('read', signal, async () => {
      const identity = ref.identity ?? (await this.#identityOf(ref.recordId))
      if (identity === undefined) return undefined
      for (let tries = 1; tries <= RESULT_TRIES; tries++) {
        const kept = await this.#table.get(identity)
        const isMeant = ref.identity !== undefined || kept?.record.recordId === ref.recordId
        if (kept === undefined || !isMeant) return undefined
        const result = await this.#moves.results.load(kept)
        if (result !== 'gone') return { ...toView(kept.record), result }
        // The service removes a record and its parts in any order, days after nobody needs them.
        const isOver = kept.ttlS !== undefined && kept.record.expiresAtMs <= this.#time.nowMs()
        if (isOver) return toView(kept.record)
      }
      throw new Error(PARTS_MISSING)
    })
  }

  list({ state, limit }: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    return this.#ask('list', signal, async () => {
      const entries = await this.#index.oldest(state, { limit })
      const found = await this.#table.getListed(entries.map(identityOf))
      const byIdentity = new Map(found.map((kept) => [kept.record.identity, kept.record]))
      return entries.flatMap(({ identity }) => {
        const record = byIdentity.get(identity)
        // The index is behind: the record has gone, or moved on.
        return record?.state === state ? [toView(record)] : []
      })
    })
  }

  #each<Request, Outcome>(
    rows: Rows<Request>,
    requests: readonly Request[],
    signal: AbortSignal | undefined,
    run: (request: Request) => Promise<Outcome>,
  ): Promise<Outcome[]> {
    return this.#table.until(signal, () => each(rows, requests, run))
  }

  #ask<Answer>(
    operation: string,
    signal: AbortSignal | undefined,
    run: () => Promise<Answer>,
  ): Promise<Answer> {
    return this.#table.until(signal, () => ask(operation, run))
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
    let from: 'free' | 'read' = request.mode === 'take' ? 'read' : 'free'
    for (let tries = 1; tries <= RESULT_TRIES; tries++) {
      const { outcome, kept } = await this.#moves.make({
        identity,
        from,
        leaseMs,
        writes,
        decide: (record, nowMs) => decideClaim(record, request, nowMs),
      })
      if (outcome.kind !== 'completed' || kept?.parts === undefined) return outcome
      const result = await this.#moves.results.load(kept)
      if (result !== undefined && result !== 'gone') return { ...outcome, result }
      // It expired and was replaced while its parts were read: what is there now answers.
      from = 'read'
    }
    throw new Error(PARTS_MISSING)
  }

  async #resolve({ verdict, identity }: Addressed): Promise<ResolveOutcome> {
    const { ref } = verdict
    if (identity === undefined) return { kind: 'not_found' }
    const { outcome } = await this.#moves.make<ResolveOutcome>({
      identity,
      from: 'read',
      decide: (record, nowMs) => {
        const isMeant = ref.identity !== undefined || record?.recordId === ref.recordId
        return decideResolve(isMeant ? record : undefined, verdict, nowMs)
      },
    })
    return outcome
  }

  async #identityOf(recordId: string): Promise<string | undefined> {
    const [key] = await findById(this.#table, recordId)
    return key?.identity
  }

  async #now(): Promise<Date> {
    // Each time: whoever asks counts on from when it asked. A time that was counted on from an
    // answer that came late, minutes ago, would be behind by as much, and nobody could tell.
    await this.#table.getItem(recordKey(NOBODY))
    return new Date(this.#time.nowMs())
  }
}

/** A verdict and the identity of the record that it is about, if there is one. */
interface Addressed {
  readonly verdict: Verdict
  readonly identity: string | undefined
}

function refOf({ ref }: Verdict): string {
  return ref.identity ?? ref.recordId
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}

interface Rows<Request> {
  readonly operation: string
  readonly check: (request: Request) => void
  readonly keyOf: (request: Request) => string
}

/**
 * Every row by itself, some at once; rows of the same key one after the other. Ends when all of
 * them have ended: nothing of a call goes on behind the back of its caller.
 */
async function each<Request, Outcome>(
  { operation, check, keyOf }: Rows<Request>,
  requests: readonly Request[],
  run: (request: Request) => Promise<Outcome>,
): Promise<Outcome[]> {
  const slots = new Slots(ROWS_AT_ONCE)
  try {
    for (const request of requests) check(request)
    return await inRounds(requests, keyOf, async (round) => {
      const settled = await Promise.allSettled(
        round.map((request) => slots.use(() => run(request))),
      )
      return settled.map((one) => {
        if (one.status === 'rejected') throw one.reason
        return one.value
      })
    })
  } catch (error) {
    throw storeFailed(operation, error, requests.length === 1)
  }
}

async function ask<Answer>(operation: string, run: () => Promise<Answer>): Promise<Answer> {
  try {
    return await run()
  } catch (error) {
    throw storeFailed(operation, error)
  }
}
