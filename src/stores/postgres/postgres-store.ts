import { sleep, systemClock, type Clock } from '../../core/clock.ts'
import { toView } from '../../core/decide.ts'
import type { DurableStore } from '../../core/durable-store.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { inRounds } from '../../core/rounds.ts'
import { Slots } from '../../core/slots.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Completion,
  HistoryQuery,
  Lease,
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
import {
  Calls,
  claimOneValues,
  claimValues,
  historyValues,
  isUuid,
  reapValues,
  renewValues,
  resolveValues,
  settleOneValues,
  settleValues,
} from './calls.ts'
import type { Driver, Row, Value } from './client.ts'
import { driverOf } from './driver.ts'
import { isUniqueViolation, storeFailed } from './failures.ts'
import { migrate } from './migrations.ts'
import {
  resolvePostgresStoreOptions,
  type PostgresStoreOptions,
  type ResolvedPostgresStoreOptions,
} from './options.ts'
import {
  AGAIN,
  allNew,
  allSettled,
  inProgress,
  nothingToTake,
  toClaimOutcome,
  toClaimRow,
  toRecord,
  toRow,
  toSettleOutcome,
  toSwept,
} from './rows.ts'
import {
  channelOf,
  CLAIM,
  CLAIM_ONE,
  CLOCK,
  FIND,
  FIND_BY_RECORD_ID,
  LIST,
  LIST_HISTORY,
  REAP,
  RENEW,
  RESOLVE,
  SETTLE,
  SETTLE_ONE,
  SWEEP,
  type TableName,
} from './sql.ts'
import { deskStore } from './desk-store.ts'
import { outboxStore } from './outbox-store.ts'
import { phaseStore } from './phase-store.ts'
import { settleIn } from './settle-in.ts'
import { completing, transact, type Purpose, type TransactionWork } from './transaction.ts'
import { Watcher } from './watcher.ts'

/**
 * How often a row is looked at that somebody has locked: whoever it is, is about to commit. After
 * that the answer is what is known, for a lock may also be held for long.
 */
const LOCKED_TRIES = 10
const LOCKED_MS = 10

const BATCHING: StoreBatching = { rowsMax: 128, flushesMax: 2 }

/** Connections that are never given to transactions, so that renewals find one. */
const RESERVED = 2

type Signal = AbortSignal | undefined

/** A store in a PostgreSQL database. It can commit a key together with the caller's rows. */
export interface PostgresStore extends Store {
  readonly durable: DurableStore

  /** Makes the table, its indexes and its functions, or brings them up to date. */
  migrate(): Promise<void>

  /**
   * The work gets the driver's own client for the open transaction: a client of `pg`, or a `sql` of
   * `postgres.js`. It can be used until the work ends; it begins and commits by itself. Waits
   * while as many transactions are open as the pool has connections to spare.
   */
  transaction<Tx>(
    lease: Lease,
    work: TransactionWork<Tx>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome>

  /** The transaction is one of `core/foreign-transaction.ts`, open in the same database. */
  settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome>

  /** Ends the connection that listens, if there is one. The pool stays yours to close. */
  close(): Promise<void>
}

/**
 * Keeps records in PostgreSQL: durable, and shared by all machines that reach it. Call `migrate()`
 * once before use, or run `migrationSql()` yourself. The pool stays yours to close.
 */
export function postgresStore(options: PostgresStoreOptions): PostgresStore {
  const resolved = resolvePostgresStoreOptions(options)
  return new TableStore(resolved, driverOf(resolved.pool, resolved.prepare))
}

class TableStore implements PostgresStore {
  readonly name = 'postgres'
  readonly batching: StoreBatching
  readonly #driver: Driver
  readonly #tableName: TableName
  readonly #calls: Calls
  readonly #clock: Clock
  readonly #transactionMs: number
  readonly #slots: Slots | undefined
  readonly #hasHistory: boolean
  readonly #watcher: Watcher | undefined
  readonly #handedOut = new WeakSet<object>()
  readonly durable: DurableStore
  readonly history?: NonNullable<Store['history']>
  readonly watch?: NonNullable<Store['watch']>

  constructor(options: ResolvedPostgresStoreOptions, driver: Driver) {
    this.#driver = driver
    this.#tableName = options.name
    this.#calls = new Calls(driver, options)
    this.#clock = options.clock ?? systemClock
    this.#transactionMs = options.transactionMs
    const spare = driver.connectionsMax - (driver.connectionsMax < 4 ? 1 : RESERVED)
    this.#slots = spare > 0 ? new Slots(spare) : undefined
    this.batching =
      Number.isFinite(spare) && spare > 0 ? { ...BATCHING, transactionsMax: spare } : BATCHING
    this.#hasHistory = options.history
    if (options.history) {
      this.history = (query, signal) => this.#listHistory(query, signal)
    }
    const watcher = toWatcher(options, driver, this.#calls)
    this.#watcher = watcher
    if (watcher !== undefined) this.watch = (identity, wake) => watcher.watch(identity, wake)
    this.durable = this.#openDurable()
  }

  #openDurable(): DurableStore {
    const calls = this.#calls
    return {
      phases: phaseStore({
        calls,
        transact: (purpose, signal) => this.#transact(purpose, signal),
      }),
      outbox: outboxStore({ calls, watcher: this.#watcher, handedOut: this.#handedOut }),
      desk: deskStore({
        calls,
        driver: this.#driver,
        hasHistory: this.#hasHistory,
      }),
    }
  }

  async close(): Promise<void> {
    this.#calls.close()
    this.#watcher?.close()
  }

  async migrate(): Promise<void> {
    this.#calls.checkOpen('migrate')
    try {
      await migrate(this.#driver, this.#tableName, systemClock)
    } catch (error) {
      throw error instanceof InvalidOptionsError ? error : storeFailed('migrate', error)
    }
  }

  claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    return inRounds(requests, identityOf, (round) => this.#claim(round, signal))
  }

  settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    return inRounds(
      settlements,
      ({ lease }) => lease.identity,
      (round) => this.#settle(round, signal),
    )
  }

  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    return inRounds(renewals, identityOf, (round) => this.#renew(round, signal))
  }

  resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    return inRounds(
      verdicts,
      ({ ref }) => ref.identity ?? ref.recordId,
      (round) => this.#resolve(round, signal),
    )
  }

  async sweep({ limit }: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]> {
    return (await this.#send('sweep', SWEEP, (nowMs) => [nowMs, limit], signal)).map(toSwept)
  }

  async reap(request: ReapRequest, signal?: AbortSignal): Promise<ReapReport> {
    const values = (nowMs: number | null) => reapValues(nowMs, this.#hasHistory, request)
    const [row] = await this.#send('reap', REAP, values, signal)
    const [removed, expired, abandoned] = row as readonly [number, number, number]
    return { removed, expired, abandoned }
  }

  async now(signal?: AbortSignal): Promise<Date> {
    if (this.#calls.nowMs !== null) return new Date(this.#calls.nowMs)
    const [row] = await this.#send('now', CLOCK, () => [], signal)
    return new Date(row?.[0] as number)
  }

  async read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined> {
    if (ref.identity === undefined && !isUuid(ref.recordId)) return undefined
    const [row] =
      ref.identity === undefined
        ? await this.#send('read', FIND_BY_RECORD_ID, () => [ref.recordId], signal)
        : await this.#send('read', FIND, () => [ref.identity], signal)
    return row && toView(toRecord(row))
  }

  async list({ state, limit }: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    const rows = await this.#send('list', LIST, () => [state, limit], signal)
    return rows.map((row) => toView(toRecord(row)))
  }

  transaction<Tx>(
    lease: Lease,
    work: TransactionWork<Tx>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome> {
    const purpose = completing(this.#calls, lease, work)
    return this.#transact(purpose, signal)
  }

  async #transact<Given, Outcome>(
    purpose: Purpose<Given, Outcome>,
    signal: AbortSignal | undefined,
  ): Promise<Outcome> {
    this.#calls.checkOpen('begin a transaction')
    if (this.#slots === undefined) {
      throw new InvalidOptionsError(
        'postgresStore: a transaction needs a pool of at least 2 connections: with one, no ' +
          'lease could be renewed and no other key claimed while it is open',
      )
    }
    const context = {
      driver: this.#driver,
      calls: this.#calls,
      clock: this.#clock,
      transactionMs: this.#transactionMs,
      handedOut: this.#handedOut,
    }
    return this.#slots.use(() => transact(context, purpose, signal))
  }

  async #listHistory(query: HistoryQuery, signal?: AbortSignal): Promise<RecordView[]> {
    const values = () => historyValues(query)
    const rows = await this.#send('read the history', LIST_HISTORY, values, signal)
    return rows.map((row) => toView(toRecord(row)))
  }

  settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome> {
    return settleIn(this.#calls, tx, lease, completion)
  }

  async #claim(requests: readonly ClaimRequest[], signal: Signal): Promise<ClaimOutcome[]> {
    const outcomes = await this.#claimOnce(requests, false, signal)
    for (let tries = 2; outcomes.includes(AGAIN); tries++) {
      if (tries > LOCKED_TRIES) throw storeFailed('claim', new Error('a key comes and goes'))
      await sleep(systemClock, LOCKED_MS, signal)
      const left = [...outcomes.keys()].filter((index) => outcomes[index] === AGAIN)
      const asked = left.map((index) => requests[index]!)
      const answers = await this.#claimOnce(asked, tries === LOCKED_TRIES, signal)
      for (const [n, index] of left.entries()) outcomes[index] = answers[n]!
    }
    return outcomes as ClaimOutcome[]
  }

  async #claimOnce(
    requests: readonly ClaimRequest[],
    isLast: boolean,
    signal: Signal,
  ): Promise<(ClaimOutcome | typeof AGAIN)[]> {
    const rows = await this.#sendClaims(requests, signal)
    const fresh = allNew(rows, requests)
    if (fresh !== undefined) return fresh
    const byIdentity = firstOfEach(rows)
    return requests.map((request) => {
      const row = byIdentity.get(request.identity)
      if (row === undefined) return withoutRow(request)
      const outcome = toClaimOutcome(row, request)
      return outcome === AGAIN && isLast ? inProgress(row) : outcome
    })
  }

  async #sendClaims(requests: readonly ClaimRequest[], signal: Signal): Promise<readonly Row[]> {
    const [first] = requests
    if (requests.length !== 1 || first === undefined) return this.#sendClaimBatch(requests, signal)
    try {
      const values = (nowMs: number | null) => claimOneValues(nowMs, this.#hasHistory, first)
      const [answer] = await this.#send('claim', CLAIM_ONE, values, signal)
      const row = toClaimRow(first.identity, answer![0])
      return row === undefined ? [] : [row]
    } catch (error) {
      // The echo of this very claim was quicker, and has taken the record id, too.
      if (isUniqueViolation(error)) return this.#sendClaimBatch(requests, signal)
      throw error
    }
  }

  #sendClaimBatch(requests: readonly ClaimRequest[], signal: Signal): Promise<readonly Row[]> {
    const values = (nowMs: number | null) => claimValues(nowMs, this.#hasHistory, requests)
    return this.#send('claim', CLAIM, values, signal)
  }

  async #sendSettlements(
    settlements: readonly Settlement[],
    signal: Signal,
  ): Promise<readonly Row[]> {
    const [first] = settlements
    if (settlements.length !== 1 || first === undefined) {
      return this.#send('settle', SETTLE, (nowMs) => settleValues(nowMs, settlements), signal)
    }
    const values = (nowMs: number | null) => settleOneValues(nowMs, first)
    const [answer] = await this.#send('settle', SETTLE_ONE, values, signal)
    const row = toRow(first.lease.identity, answer![0])
    return row === undefined ? [] : [row]
  }

  async #settle(settlements: readonly Settlement[], signal: Signal): Promise<SettleOutcome[]> {
    const rows = await this.#sendSettlements(settlements, signal)
    const settled = allSettled(rows, settlements)
    if (settled !== undefined) return settled
    const byIdentity = firstOfEach(rows)
    const outcomes = settlements.map((settlement) =>
      toSettleOutcome(byIdentity.get(settlement.lease.identity), settlement),
    )
    if (!outcomes.includes(AGAIN)) return outcomes as SettleOutcome[]
    return Promise.all(
      outcomes.map(async (outcome, index) => {
        if (outcome !== AGAIN) return outcome
        const [again] = await this.#settle([settlements[index]!], signal)
        return again!
      }),
    )
  }

  /**
   * A row that stays locked cannot be prolonged, and must not be called so: its holder would count
   * on a lease that the database does not know of. The call fails instead, and the engine asks
   * again; what it has prolonged is prolonged twice, which does no harm.
   */
  async #renew(renewals: readonly Renewal[], signal: Signal): Promise<boolean[]> {
    const answers = new Map<string, unknown>()
    let left = renewals
    for (let tries = 1; left.length > 0 && tries <= LOCKED_TRIES; tries++) {
      if (tries > 1) await sleep(systemClock, LOCKED_MS, signal)
      const asked = left
      const rows = await this.#send('renew', RENEW, (nowMs) => renewValues(nowMs, asked), signal)
      const byIdentity = firstOfEach(rows)
      for (const { identity } of asked) answers.set(identity, byIdentity.get(identity)?.[1])
      left = asked.filter(({ identity }) => {
        const how = answers.get(identity)
        return how === 'locked' || how === 'locked_lapsed'
      })
    }
    if (left.length > 0) {
      const cause = new Error(`${left.length} of ${renewals.length} records are locked`)
      throw storeFailed('renew', cause)
    }
    return renewals.map(({ identity }) => answers.get(identity) === 'renewed')
  }

  async #resolve(verdicts: readonly Verdict[], signal: Signal): Promise<ResolveOutcome[]> {
    const values = (nowMs: number | null) => resolveValues(nowMs, verdicts)
    const rows = await this.#send('resolve', RESOLVE, values, signal)
    const byNumber = new Map<unknown, Row>()
    for (const row of rows) if (!byNumber.has(row[0])) byNumber.set(row[0], row)
    return verdicts.map((_, number) => {
      const row = byNumber.get(number)
      if (row === undefined) return { kind: 'not_found' }
      const [, done, ...columns] = row
      const record = toRecord(columns)
      if (done === true) return { kind: 'resolved', record: toView(record) }
      const { state, attempt } = record
      return state === 'unknown'
        ? { kind: 'other_attempt', attempt }
        : { kind: 'not_unknown', state }
    })
  }

  async #send(
    operation: string,
    sql: string,
    values: (nowMs: number | null) => Value[],
    signal: Signal,
  ): Promise<readonly Row[]> {
    return this.#calls.send(operation, sql, () => values(this.#calls.nowMs), signal)
  }
}

function toWatcher(
  { listen, name, clock = systemClock }: ResolvedPostgresStoreOptions,
  driver: Driver,
  calls: Calls,
): Watcher | undefined {
  if (listen === false) return undefined
  if (driver.listen !== undefined) {
    return new Watcher({ listen: driver.listen, channel: channelOf(name), calls, clock })
  }
  if (listen === undefined) return undefined
  throw new InvalidOptionsError(
    'postgresStore: listen: true needs a Pool of "pg" or the sql of "postgres": what listens ' +
      'must be a connection of its own',
  )
}

/** There was none to take, or it was reaped between two statements. */
function withoutRow(request: ClaimRequest): ClaimOutcome | typeof AGAIN {
  return request.mode === 'take' ? nothingToTake(request) : AGAIN
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}

/** What was written comes before what was read. */
function firstOfEach(rows: readonly Row[]): Map<string, Row> {
  const byIdentity = new Map<string, Row>()
  for (const row of rows) {
    const identity = row[0] as string
    if (!byIdentity.has(identity)) byIdentity.set(identity, row)
  }
  return byIdentity
}
