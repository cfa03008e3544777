import { sleep, systemClock } from '../../core/clock.ts'
import {
  decideReap,
  decideRenew,
  decideResolve,
  decideSweep,
  toSwept,
  toView,
} from '../../core/decide.ts'
import { decideShorten } from '../../core/shorten-lease.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { DurableStore } from '../../core/durable-store.ts'
import type { StoredRecord } from '../../core/record.ts'
import { inRounds } from '../../core/rounds.ts'
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
import { Calls, checkClaims, checkSettlements, inPieces, ROWS_MAX } from './calls.ts'
import { claimOnce, type ClaimPass } from './claiming.ts'
import { KEPT, toRecord, VIEW } from './columns.ts'
import { deskStore } from './desk.ts'
import { Driver, readCommitted, transact, type Session } from './driver.ts'
import { storeFailed } from './failures.ts'
import { migrate } from './migrations.ts'
import { lockAll, lockFree, makeMoves, readLeases, type Move, type Place } from './moves.ts'
import {
  resolveMysqlStoreOptions,
  type MysqlStoreOptions,
  type ResolvedMysqlStoreOptions,
} from './options.ts'
import { outboxStore } from './outbox.ts'
import { phaseStore } from './phases.ts'
import { settleIn } from './settle-in.ts'
import { settleBatch } from './settlement.ts'
import {
  abandonedSql,
  aheadSql,
  dueSql,
  findSql,
  historySql,
  identitiesSql,
  listSql,
  nowSql,
  probeSql,
  type Tables,
} from './sql.ts'
import { completing, Transactions, type TransactionWork } from './transaction.ts'
import { isIdentity, isUuid } from './values.ts'

/**
 * How often a row is looked at that somebody has locked: whoever it is, is about to commit. After
 * that the answer is what is known, for a lock may also be held for long.
 */
const LOCKED_TRIES = 10
const LOCKED_MS = 10

const BATCHING: StoreBatching = { rowsMax: 64, flushesMax: 2 }

/** A store in a MySQL or MariaDB database. It can commit a key together with the caller's rows. */
export interface MysqlStore extends Store {
  /** Makes the tables, or brings them up to date. */
  migrate(): Promise<void>

  /**
   * The work gets the connection of `mysql2/promise` on which the transaction is open. It can be
   * used until the work ends; it begins and commits by itself. Waits while as many transactions
   * are open as the pool has connections to spare.
   */
  transaction<Tx>(
    lease: Lease,
    work: TransactionWork<Tx>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome>

  /**
   * Completes a key inside a transaction of the caller's: a connection of `mysql2`, a transaction
   * of Drizzle, Kysely, Knex, Prisma or TypeORM, or `{ runSql }`. Call it last before the commit.
   * `fenced`: roll back.
   */
  settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome>

  /** Its outbox takes transactions of the same tools as `settleIn`, and the store's own. */
  readonly durable: DurableStore
}

/**
 * Keeps records in MySQL or MariaDB: durable, and shared by all machines that reach it. Call
 * `migrate()` once before use, or run `migrationSql()` yourself. The pool stays yours to close.
 */
export function mysqlStore(options: MysqlStoreOptions): MysqlStore {
  const resolved = resolveMysqlStoreOptions(options)
  return new TableStore(resolved, new Driver(resolved.pool))
}

class TableStore implements MysqlStore {
  readonly name = 'mysql'
  readonly batching: StoreBatching
  readonly durable: DurableStore
  readonly history?: NonNullable<Store['history']>
  readonly #driver: Driver
  readonly #tables: Tables
  readonly #keepsHistory: boolean
  readonly #calls: Calls
  readonly #transactions: Transactions

  constructor(options: ResolvedMysqlStoreOptions, driver: Driver) {
    this.#driver = driver
    this.#tables = options.tables
    this.#keepsHistory = options.history
    this.#calls = new Calls(driver, options.clock)
    this.#transactions = new Transactions({
      driver,
      calls: this.#calls,
      tables: options.tables,
      clock: options.clock ?? systemClock,
      transactionMs: options.transactionMs,
    })
    const { atOnceMax } = this.#transactions
    this.batching = atOnceMax === undefined ? BATCHING : { ...BATCHING, transactionsMax: atOnceMax }
    const context = {
      tables: options.tables,
      calls: this.#calls,
      transactions: this.#transactions,
      place: () => this.#place,
    }
    this.durable = {
      phases: phaseStore(context),
      outbox: outboxStore(context),
      desk: deskStore(context),
    }
    if (options.history) this.history = (query, signal) => this.#history(query, signal)
  }

  async migrate(): Promise<void> {
    try {
      await migrate(this.#driver, this.#tables, systemClock)
    } catch (error) {
      throw error instanceof InvalidOptionsError ? error : storeFailed('migrate', error)
    }
  }

  async claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    checkClaims(requests)
    return inRounds(requests, identityOf, (round) =>
      inPieces(round, noBytes, (piece) => this.#claim(piece, signal)),
    )
  }

  async settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    checkSettlements(settlements)
    return inRounds(
      settlements,
      ({ lease }) => lease.identity,
      (round) =>
        inPieces(round, resultBytes, (piece) =>
          this.#calls.make('settle', (session) => settleBatch(session, this.#place, piece), signal),
        ),
    )
  }

  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    return inRounds(renewals, identityOf, (round) =>
      inPieces(round, noBytes, (piece) => this.#renew(piece, signal)),
    )
  }

  /** Renewing locks the row, which a server also does that takes no writes. */
  async probe(_identity: string, signal?: AbortSignal): Promise<void> {
    const write = (session: Session) => transact(session, () => session.run(probeSql(this.#tables)))
    await this.#calls.make('probe', write, signal)
  }

  async resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    const refs = verdicts.map(({ ref }) => ref)
    const found = await this.#identitiesOf(refs, signal)
    const asked = verdicts.map((verdict, n) => ({ verdict, identity: found[n] }))
    // What is found nowhere gets a name of its own, and no record has it.
    return inRounds(
      asked.map((one, n) => ({ ...one, name: one.identity ?? `${n}` })),
      ({ name }) => name,
      (round) => inPieces(round, noBytes, (piece) => this.#resolve(piece, signal)),
    )
  }

  async sweep({ limit }: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]> {
    await this.#moveDue('sweep', { queues: [AHEAD], limit, signal }, (before, nowMs) => {
      const after = decideShorten(before, nowMs)
      return after && { before, after, tells: undefined }
    })
    return this.#moveDue('sweep', { queues: [HELD], limit, signal }, (before, nowMs) => {
      const after = decideSweep(before, nowMs)
      return after && { before, after, tells: toSwept(after) }
    })
  }

  async reap(request: ReapRequest, signal?: AbortSignal): Promise<ReapReport> {
    const queues = request.abandoned === undefined ? ENDED : [...ENDED, ...ACCEPTED]
    const query = { queues, limit: request.limit, signal }
    const kinds = await this.#moveDue('reap', query, (before, nowMs) => {
      const decision = decideReap(before, request, nowMs)
      return decision && { before, after: decision.write, tells: decision.kind }
    })
    const report = { removed: 0, expired: 0, abandoned: 0 }
    for (const kind of kinds) report[kind]++
    return report
  }

  async read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined> {
    const by = ref.identity === undefined ? 'recordId' : 'identity'
    const value = ref.identity ?? ref.recordId
    if (by === 'identity' ? !isIdentity(value) : !isUuid(value)) return undefined
    const [row] = await this.#rows('read', findSql(this.#tables, by, value), signal)
    return row && toView(toRecord([...VIEW, 'result'], row))
  }

  async list({ state, limit }: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    const rows = await this.#rows('list', listSql(this.#tables, { state, limit }), signal)
    return rows.map((row) => toView(toRecord(VIEW, row)))
  }

  async now(signal?: AbortSignal): Promise<Date> {
    const [row] = await this.#rows('tell the time', nowSql(this.#calls.now), signal)
    return new Date(Number(row?.[0]))
  }

  transaction<Tx>(
    lease: Lease,
    work: TransactionWork<Tx>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome> {
    return this.#transactions.run(completing(lease, work), signal)
  }

  async settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome> {
    const settlement: Settlement = { kind: 'complete', lease, ...completion }
    checkSettlements([settlement])
    return settleIn(tx, this.#place, settlement)
  }

  get #place(): Place {
    return { tables: this.#tables, now: this.#calls.now, history: this.#keepsHistory }
  }

  #rows(operation: string, sql: string, signal: AbortSignal | undefined) {
    return this.#calls.make(operation, (session) => readCommitted(session, sql), signal)
  }

  async #claim(
    requests: readonly ClaimRequest[],
    signal: AbortSignal | undefined,
  ): Promise<ClaimOutcome[]> {
    const outcomes = new Map<string, ClaimOutcome>()
    let left = requests
    for (let tries = 1; ; tries++) {
      const asked = left
      const claim = (session: Session) => claimOnce(session, this.#place, asked)
      const pass = await this.#calls.make('claim', claim, signal)
      for (const [identity, outcome] of pass.outcomes) outcomes.set(identity, outcome)
      left = asked.filter(({ identity }) => !outcomes.has(identity))
      if (left.length > 0 && tries === LOCKED_TRIES) {
        for (const { identity } of left) outcomes.set(identity, stillLocked(pass, identity))
        left = []
      }
      if (left.length === 0) return requests.map(({ identity }) => outcomes.get(identity)!)
      if (pass.isLocked) await sleep(systemClock, LOCKED_MS, signal)
    }
  }

  /**
   * A row that stays locked cannot be prolonged, and must not be called so: its holder would count
   * on a lease that the database does not know of. The call fails instead, and the engine asks
   * again; what it has prolonged is prolonged twice, which does no harm.
   */
  async #renew(renewals: readonly Renewal[], signal: AbortSignal | undefined): Promise<boolean[]> {
    const answers = new Map<string, boolean>()
    let left = renewals
    for (let tries = 1; left.length > 0 && tries <= LOCKED_TRIES; tries++) {
      if (tries > 1) await sleep(systemClock, LOCKED_MS, signal)
      const asked = left
      const renew = (session: Session) => this.#renewOnce(session, asked)
      const known = await this.#calls.make('renew', renew, signal)
      for (const [identity, isRenewed] of known) answers.set(identity, isRenewed)
      left = asked.filter(({ identity }) => !answers.has(identity))
    }
    if (left.length > 0) {
      const cause = new Error(`${left.length} of ${renewals.length} records are locked`)
      throw storeFailed('renew', cause)
    }
    return renewals.map(({ identity }) => answers.get(identity)!)
  }

  /** Skips locked rows, or one commit under way would hold up the renewals of all others. */
  async #renewOnce(
    session: Session,
    renewals: readonly Renewal[],
  ): Promise<ReadonlyMap<string, boolean>> {
    const answers = new Map<string, boolean>()
    await transact(session, async () => {
      const { nowMs, byIdentity } = await lockFree(session, this.#place, renewals)
      const moves: Move[] = []
      for (const renewal of renewals) {
        const before = byIdentity.get(renewal.identity)
        if (before === undefined) continue
        const after = decideRenew(before, renewal, nowMs)
        if (after !== undefined) moves.push({ before, after })
        answers.set(renewal.identity, after !== undefined)
      }
      await makeMoves(session, this.#place, moves)
    })
    if (answers.size === renewals.length) return answers
    // Tells the locked ones from those that have moved on or are gone.
    const { byIdentity } = await readLeases(session, this.#place, renewals)
    for (const renewal of renewals) {
      const isHeld = decideRenew(byIdentity.get(renewal.identity), renewal, 0) !== undefined
      if (!answers.has(renewal.identity) && !isHeld) answers.set(renewal.identity, false)
    }
    return answers
  }

  async #identitiesOf(
    refs: readonly RecordRef[],
    signal: AbortSignal | undefined,
  ): Promise<(string | undefined)[]> {
    const asked = refs.map(({ recordId }) => recordId).filter(isUuid)
    const rows = await inPieces(asked, noBytes, async (ids) => [
      ...(await this.#rows('resolve', identitiesSql(this.#tables, ids), signal)),
    ])
    const byId = new Map(rows.map(([id, identity]) => [id, String(identity).toLowerCase()]))
    return refs.map(({ identity, recordId }) => {
      if (recordId !== undefined) return byId.get(recordId)
      return isIdentity(identity) ? identity : undefined
    })
  }

  #resolve(
    asked: readonly { readonly verdict: Verdict; readonly identity: string | undefined }[],
    signal: AbortSignal | undefined,
  ): Promise<ResolveOutcome[]> {
    const named = asked.flatMap(({ identity }) => (identity === undefined ? [] : [{ identity }]))
    if (named.length === 0) return Promise.resolve(asked.map(() => ({ kind: 'not_found' })))
    const resolve = (session: Session) =>
      transact(session, async () => {
        const { nowMs, byIdentity } = await lockAll(session, this.#place, named)
        const moves: Move[] = []
        const outcomes = asked.map(({ verdict, identity = '' }) => {
          const before = byIdentity.get(identity)
          const { outcome, write } = decideResolve(before, verdict, nowMs)
          if (before !== undefined && write !== undefined) moves.push({ before, after: write })
          return outcome
        })
        await makeMoves(session, this.#place, moves)
        return outcomes
      })
    return this.#calls.make('resolve', resolve, signal)
  }

  /** Moves records on that are due, in pieces that are committed one by one. */
  async #moveDue<Told>(
    operation: string,
    { queues, limit, signal }: DueQuery,
    decide: (before: StoredRecord, nowMs: number) => DueMove<Told> | undefined,
  ): Promise<Told[]> {
    const told: Told[] = []
    for (const queueSql of queues) {
      for (;;) {
        const piece = Math.min(ROWS_MAX, limit - told.length)
        if (piece <= 0) return told
        const move = (session: Session) =>
          this.#movePiece(session, { queueSql, limit: piece }, decide)
        const { made, isLast } = await this.#calls.make(operation, move, signal)
        told.push(...made.map(({ tells }) => tells))
        // Without a single one moved, somebody else is at work on all that are due.
        if (isLast || made.length === 0) break
      }
    }
    return told
  }

  #movePiece<Told>(
    session: Session,
    { queueSql, limit }: { readonly queueSql: QueueSql; readonly limit: number },
    decide: (before: StoredRecord, nowMs: number) => DueMove<Told> | undefined,
  ): Promise<{ made: readonly DueMove<Told>[]; isLast: boolean }> {
    return transact(session, async () => {
      const place = this.#place
      const rows = await session.rows(queueSql(place, limit))
      const isLast = rows.length < limit
      if (rows.length === 0) return { made: [], isLast }
      const due = rows.map(([identity]) => ({ identity: String(identity).toLowerCase() }))
      const { nowMs, byIdentity } = await lockFree(session, place, due)
      const moves = [...byIdentity.values()].flatMap((before) => decide(before, nowMs) ?? [])
      const made = new Set<Move>(await makeMoves(session, place, moves))
      return { made: moves.filter((move) => made.has(move)), isLast }
    })
  }

  async #history({ ref, limit }: HistoryQuery, signal?: AbortSignal): Promise<RecordView[]> {
    const by = ref.identity === undefined ? 'recordId' : 'identity'
    const value = ref.identity ?? ref.recordId
    if (by === 'identity' ? !isIdentity(value) : !isUuid(value)) return []
    const sql = historySql(this.#tables, { by, value, limit })
    const rows = await this.#rows('read', sql, signal)
    return rows.map((row) => toView({ ...toRecord(KEPT, row), state: 'expired', token: '' }))
  }
}

interface DueQuery {
  readonly queues: readonly QueueSql[]
  readonly limit: number
  readonly signal: AbortSignal | undefined
}

/** Finds what is due of one kind. */
type QueueSql = (place: Place, limit: number) => string

/** Held since before the clock was set back. */
const AHEAD: QueueSql = ({ tables, now }, limit) => aheadSql(tables, now, limit)

const HELD: QueueSql = ({ tables, now }, limit) =>
  dueSql(tables, now, { state: 'in_progress', limit })

/** What may be removed. An operation that was begun is brought to its end, and is not in it. */
const ENDED: readonly QueueSql[] = (['completed', 'failed_retryable'] as const).map(
  (state): QueueSql =>
    ({ tables, now }, limit) =>
      dueSql(tables, now, { state, limit }),
)

const ACCEPTED: readonly QueueSql[] = [
  ({ tables, now }, limit) => dueSql(tables, now, { state: 'pending', limit }),
  ({ tables, now }, limit) => abandonedSql(tables, now, limit),
]

interface DueMove<Told> extends Move {
  readonly tells: Told
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}

function noBytes(): number {
  return 0
}

function resultBytes(settlement: Settlement): number {
  return settlement.kind === 'complete' ? settlement.result.byteLength : 0
}

/** What a claim gets while somebody else has the row locked: it is about to move. */
function stillLocked({ seen, nowMs }: ClaimPass, identity: string): ClaimOutcome {
  const record = seen.get(identity)
  if (record === undefined) throw storeFailed('claim', new Error('a key comes and goes'))
  const { recordId, leaseUntilMs, expiresAtMs } = record
  const leaseLeftMs = Math.max(0, leaseUntilMs - nowMs)
  return { kind: 'in_progress', recordId, leaseLeftMs, expiresAt: new Date(expiresAtMs) }
}
