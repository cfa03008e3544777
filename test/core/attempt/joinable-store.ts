import type { Clock } from '../../../src/core/time/clock.ts'
import {
  decideClaim,
  decideRenew,
  decideSettle,
  decideSweep,
  toSwept,
  toView,
} from '../../../src/core/record/decide.ts'
import { InvalidOptionsError } from '../../../src/core/errors.ts'
import type { StoredRecord } from '../../../src/core/record/record.ts'
import type {
  ClaimRequest,
  Completion,
  Lease,
  RecordRef,
  Renewal,
  SettleOutcome,
  Settlement,
  Store,
} from '../../../src/core/store/store.ts'

/** How long a settlement waits for a locked row, as in a database. */
export const LOCK_MS = 4_000

/** The fate of the statement that completes the key. */
export type JoinFate = 'ok' | 'fail' | 'lose' | 'hang'

/**
 * A small database: one table of records, one of payments, row locks, and transactions that the
 * test begins and ends itself.
 */
export class JoinableStore implements Store {
  readonly name = 'joinable'
  /** The payments that were committed. */
  readonly paid: string[] = []
  readonly records = new Map<string, StoredRecord>()
  readonly locks = new Map<string, PromiseWithResolvers<void>>()
  readonly #clock: Clock
  fates: JoinFate[] = []

  constructor(clock: Clock) {
    this.#clock = clock
  }

  begin(): Transaction {
    return new Transaction(this)
  }

  /** A claim that finds the row locked gets the last committed state, as the contract says. */
  async claim(requests: readonly ClaimRequest[]) {
    const nowMs = this.#clock.nowMs()
    return requests.map((request) => {
      const record = this.records.get(request.identity)
      const { outcome, write } = decideClaim(record, request, nowMs)
      if (write === undefined || !this.locks.has(request.identity))
        return this.#keep(write, outcome)
      const { recordId, expiresAtMs } = record!
      const expiresAt = new Date(expiresAtMs)
      return { kind: 'in_progress', recordId, leaseLeftMs: 0, expiresAt } as const
    })
  }

  async settle(settlements: readonly Settlement[]): Promise<SettleOutcome[]> {
    for (const { lease } of settlements) await this.#unlocked(lease.identity)
    const nowMs = this.#clock.nowMs()
    return settlements.map((settlement) => {
      const record = this.records.get(settlement.lease.identity)
      const { outcome, write } = decideSettle(record, settlement, nowMs)
      return this.#keep(write, outcome)
    })
  }

  /** One locked row fails the whole call: no holder in it knows whether its lease was renewed. */
  async renew(renewals: readonly Renewal[]): Promise<boolean[]> {
    const nowMs = this.#clock.nowMs()
    if (renewals.some(({ identity }) => this.locks.has(identity))) throw new Error('row is locked')
    return renewals.map((renewal) => {
      const write = decideRenew(this.records.get(renewal.identity), renewal, nowMs)
      return this.#keep(write, write !== undefined)
    })
  }

  async sweep() {
    const nowMs = this.#clock.nowMs()
    const unlocked = [...this.records.values()].filter(({ identity }) => !this.locks.has(identity))
    return unlocked.flatMap((record) => {
      const write = decideSweep(record, nowMs)
      return write === undefined ? [] : [this.#keep(write, toSwept(write))]
    })
  }

  async read({ identity }: RecordRef) {
    const record = this.records.get(identity!)
    return record && toView(record)
  }

  async settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome> {
    if (!(tx instanceof Transaction)) throw new InvalidOptionsError('not a transaction')
    const fate = this.fates.shift() ?? 'ok'
    if (fate === 'hang') return new Promise(() => undefined)
    if (fate === 'fail') throw tx.abort(new Error('could not serialize access'))
    if (tx.staged?.identity !== lease.identity) await this.#unlocked(lease.identity)
    const record = tx.staged ?? this.records.get(lease.identity)
    const settlement = { kind: 'complete', lease, ...completion } as const
    const { outcome, write } = decideSettle(record, settlement, this.#clock.nowMs())
    if (write !== undefined) tx.stage(write)
    if (fate === 'lose') throw new Error('the answer to completeIn was lost')
    if (write !== undefined || outcome.kind === 'fenced') return outcome
    // An earlier transaction of the same lease has completed the record.
    return { kind: 'fenced', own: true, state: 'completed' }
  }

  resolve = () => Promise.reject(new Error('not needed here'))
  reap = () => Promise.reject(new Error('not needed here'))
  list = () => Promise.reject(new Error('not needed here'))

  async #unlocked(identity: string): Promise<void> {
    const lock = this.locks.get(identity)
    if (lock === undefined) return
    const tooLate = Promise.withResolvers<void>()
    const cancel = this.#clock.after(LOCK_MS, () => tooLate.reject(new Error('row is locked')))
    await Promise.race([lock.promise, tooLate.promise]).finally(cancel)
  }

  #keep<Outcome>(write: StoredRecord | undefined, outcome: Outcome): Outcome {
    if (write !== undefined) this.records.set(write.identity, write)
    return outcome
  }
}

export class Transaction {
  readonly #store: JoinableStore
  readonly #rows: string[] = []
  #state: 'open' | 'aborted' | 'ended' = 'open'
  staged: StoredRecord | undefined

  constructor(store: JoinableStore) {
    this.#store = store
  }

  get isEnded(): boolean {
    return this.#state === 'ended'
  }

  pay(row: string): void {
    if (this.#state !== 'open') throw new Error(`the transaction is ${this.#state}`)
    this.#rows.push(row)
  }

  abort(error: Error): Error {
    this.#state = 'aborted'
    return error
  }

  stage(write: StoredRecord): void {
    if (this.#state !== 'open') throw new Error(`the transaction is ${this.#state}`)
    this.staged = write
    this.#store.locks.set(write.identity, Promise.withResolvers<void>())
  }

  /** Undoes only the completion of the key; its row stays locked, as in a database. */
  rollbackToSavepoint(): void {
    this.staged = this.staged && this.#store.records.get(this.staged.identity)
  }

  commit(): void {
    if (this.#state !== 'open') throw new Error(`the transaction is ${this.#state}`)
    if (this.staged !== undefined) this.#store.records.set(this.staged.identity, this.staged)
    this.#store.paid.push(...this.#rows)
    this.#end()
  }

  rollback(): void {
    this.#end()
  }

  #end(): void {
    this.#state = 'ended'
    if (this.staged === undefined) return
    this.#store.locks.get(this.staged.identity)?.resolve()
    this.#store.locks.delete(this.staged.identity)
  }
}
