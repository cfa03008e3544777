/**
 * A store with `durable` in this process, for simulations with thousands of runs and interleaved
 * transactions. Records, phases and acts are decided by the code that SQLite uses, too; the cases
 * of all stores check the rest.
 */
import type { Clock } from '../../../src/core/time/clock.ts'
import {
  decideAct,
  decideStep,
  type PhaseChange,
  type RecordAct,
} from '../../../src/stores/kit/decide-durable.ts'
import { NO_BYTES } from '../../../src/core/bytes.ts'
import {
  decideClaim,
  decideReap,
  decideRenew,
  decideResolve,
  decideSettle,
  decideSweep,
  holds,
  toSwept,
  toView,
  type Decision,
} from '../../../src/core/record/decide.ts'
import { decideShorten } from '../../../src/core/record/shorten-lease.ts'
import type {
  DueQuery,
  DurableStore,
  NewOperation,
  PhaseStore,
  Step,
  StepOutcome,
  StoredOperation,
  StoredPhase,
} from '../../../src/core/store/durable-store.ts'
import type {
  Act,
  ActOutcome,
  AuditEntry,
  DiscardedReply,
  OperatorStore,
  DueUnknown,
  PhaseRef,
  UnknownRequest,
} from '../../../src/core/store/operator-store.ts'
import { OutcomeUnknownError } from '../../../src/core/errors.ts'
import { decideMessageAct } from '../../../src/stores/kit/messages.ts'
import type { StoredRecord } from '../../../src/core/record/record.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Completion,
  Lease,
  RecordRef,
  SettleOutcome,
  Settlement,
  Store,
} from '../../../src/core/store/store.ts'
import { SimulatedOutbox, SimulatedTransaction } from './outbox.ts'
import { SimulatedTurns } from './turns.ts'

export interface SimulatedStore<Row> extends Store {
  readonly durable: DurableStore
  /** Rows that transactions have committed, in the order of their commits. */
  readonly rows: readonly Row[]
  /** Writes a row in an open transaction. */
  write(tx: unknown, row: Row): void
  /** Begins a transaction of the application, outside of the store. */
  transact(work: (tx: unknown) => void | Promise<void>): Promise<void>
}

export function simulatedStore<Row>(clock: Clock): SimulatedStore<Row> {
  return new InProcessStore<Row>(clock)
}

// Every write runs without an `await` in between: that is the lock.
class InProcessStore<Row> implements SimulatedStore<Row> {
  readonly name = 'simulated'
  readonly rows: Row[] = []
  readonly durable: DurableStore
  readonly #clock: Clock
  readonly #records = new Map<string, StoredRecord>()
  readonly #operations = new Map<string, NewOperation>()
  readonly #phases = new Map<string, Map<string, StoredPhase>>()
  readonly #outbox: SimulatedOutbox
  readonly #audit: AuditEntry[] = []
  readonly #discarded: DiscardedReply[] = []
  readonly #dueTurns = new SimulatedTurns()
  readonly #unknownTurns = new SimulatedTurns()

  constructor(clock: Clock) {
    this.#clock = clock
    this.#outbox = new SimulatedOutbox(clock)
    this.durable = {
      phases: this.#phaseStore(),
      outbox: this.#outbox,
      operator: this.#operatorStore(),
    }
  }

  async claim(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
    return requests.map((request) => {
      const record = this.#records.get(request.identity)
      const decision = decideClaim(record, request, this.#nowMs)
      const { write } = decision
      if (record !== undefined && write !== undefined && write.recordId !== record.recordId) {
        this.#remove(record)
      }
      return this.#apply(decision)
    })
  }

  async settle(settlements: readonly Settlement[]): Promise<SettleOutcome[]> {
    return settlements.map((settlement) => {
      const record = this.#records.get(settlement.lease.identity)
      return this.#apply(decideSettle(record, copied(settlement), this.#nowMs))
    })
  }

  async renew(renewals: Parameters<Store['renew']>[0]): Promise<boolean[]> {
    return renewals.map((renewal) => {
      const write = decideRenew(this.#records.get(renewal.identity), renewal, this.#nowMs)
      if (write !== undefined) this.#put(write)
      return write !== undefined
    })
  }

  async resolve(verdicts: Parameters<Store['resolve']>[0]) {
    return verdicts.map((verdict) =>
      this.#apply(decideResolve(this.#find(verdict.ref), verdict, this.#nowMs)),
    )
  }

  async sweep({ limit }: { readonly limit: number }) {
    for (const record of this.#all()) {
      const shortened = decideShorten(record, this.#nowMs)
      if (shortened !== undefined) this.#put(shortened)
    }
    const writes = this.#all().flatMap((record) => decideSweep(record, this.#nowMs) ?? [])
    return writes.slice(0, limit).map((write) => {
      this.#put(write)
      return toSwept(write)
    })
  }

  async reap(request: Parameters<Store['reap']>[0]) {
    const report = { removed: 0, expired: 0, abandoned: 0 }
    let left = request.limit
    for (const record of this.#all()) {
      if (left === 0) break
      const decision = decideReap(record, request, this.#nowMs)
      if (decision === undefined) continue
      if (decision.kind !== 'abandoned') this.#remove(record)
      if (decision.write !== undefined) this.#put(decision.write)
      report[decision.kind]++
      left--
    }
    return report
  }

  async read(ref: RecordRef) {
    const record = this.#find(ref)
    return record && { ...toView(record), result: record.result?.slice() }
  }

  async list({ state, limit }: Parameters<Store['list']>[0]) {
    const ageOf = ({ expiresAtMs, lastRunAtMs }: StoredRecord) =>
      state === 'completed' ? expiresAtMs : lastRunAtMs
    return this.#all()
      .filter((record) => record.state === state)
      .toSorted((one, other) => ageOf(one) - ageOf(other))
      .slice(0, limit)
      .map((record) => ({ ...toView(record), result: undefined }))
  }

  async transaction(
    lease: Lease,
    work: (tx: unknown) => Completion | Promise<Completion>,
  ): Promise<SettleOutcome> {
    const decide = (completion: Completion) => {
      const record = this.#records.get(lease.identity)
      return decideSettle(record, copied({ kind: 'complete', lease, ...completion }), this.#nowMs)
    }
    // The lease is lost, or an earlier call has committed: the work must not run in either case.
    const { outcome, write } = decide({ result: new Uint8Array(), retentionMs: 0 })
    if (write === undefined) return outcome
    return this.#within(work, (completion) => {
      const decision = decide(completion)
      return { outcome: this.#apply(decision), isKept: decision.write !== undefined }
    })
  }

  write(tx: unknown, row: Row): void {
    const transaction = SimulatedTransaction.of(tx)
    transaction.rows.push(row)
  }

  async transact(work: (tx: unknown) => void | Promise<void>): Promise<void> {
    await this.#within(work, () => ({ outcome: undefined, isKept: true }))
  }

  /** Runs work in a transaction. `end` decides whether it commits, and adds its own writes. */
  async #within<Given, Outcome>(
    work: (tx: unknown) => Given | Promise<Given>,
    end: (given: Given) => { readonly outcome: Outcome; readonly isKept: boolean },
  ): Promise<Outcome> {
    const tx = new SimulatedTransaction()
    try {
      const given = await work(tx)
      if (tx.isEnded) throw new OutcomeUnknownError('the work has ended its transaction itself')
      const { outcome, isKept } = end(given)
      if (isKept) this.#commit(tx)
      return outcome
    } catch (error) {
      if (!tx.isEnded) throw error
      this.#commit(tx)
      throw new OutcomeUnknownError('the work has ended its transaction itself', { cause: error })
    } finally {
      tx.end()
    }
  }

  #commit(tx: SimulatedTransaction): void {
    this.rows.push(...(tx.rows as Row[]))
    this.#outbox.commit(tx)
  }

  #phaseStore(): PhaseStore {
    return {
      advance: async (lease, work) => {
        const record = this.#records.get(lease.identity)
        if (record === undefined) return { kind: 'fenced', own: false, state: 'absent' }
        const own = holds(record, lease)
        // A step that hands over may repeat an earlier one: only the work shows the difference.
        const mayBeHandedOver = record.state === 'pending' && record.token === lease.token
        const mayRun = (own && record.state === 'in_progress') || mayBeHandedOver
        if (!mayRun) return { kind: 'fenced', own, state: record.state }
        return this.#within(work, (step) => this.#takeStep(lease, step))
      },
      record: async (lease, step) => this.#takeStep(lease, step).outcome,
      load: async (recordId) => this.#load(recordId),
      due: async (query) => {
        const due = this.#due(query, true)
          .filter(({ record }) => !query.withoutTenants?.includes(record.tenant))
          .map((item) => {
            const lane = laneOf(item.name, item.version)
            return { lane, tenant: item.record.tenant, item }
          })
        return this.#dueTurns.take(due, query)
      },
      orphans: async (query) =>
        this.#due(query, false)
          .slice(0, query.limit)
          .map(({ name, version, record: { recordId } }) => ({ name, version, recordId })),
    }
  }

  #takeStep(lease: Lease, step: Step): { outcome: StepOutcome; isKept: boolean } {
    const record = this.#records.get(lease.identity)
    const before = record && step.phase && this.#phasesOf(record.recordId).get(step.phase.name)
    const decision = decideStep(record, before, { lease, step }, this.#nowMs)
    const { outcome, write, phase } = decision
    if (write === undefined) return { outcome, isKept: false }
    this.#put(write)
    const { recordId } = write
    if (step.operation !== undefined && !this.#operations.has(recordId)) {
      this.#operations.set(recordId, step.operation)
    }
    if (phase !== undefined) this.#change(recordId, phase)
    return { outcome, isKept: true }
  }

  #load(recordId: string): StoredOperation | undefined {
    const operation = this.#operations.get(recordId)
    if (operation === undefined) return undefined
    const { name, version, input } = operation
    const phases = [...this.#phasesOf(recordId).values()]
    return { name, version, input, phases: phases.toSorted((a, b) => a.number - b.number) }
  }

  /** Sorted by due time, the longest due first. */
  #due({ operations }: DueQuery, isKnown: boolean) {
    const nowMs = this.#nowMs
    return this.#all()
      .filter(({ state, expiresAtMs, attempt }) =>
        state === 'pending' ? expiresAtMs > nowMs || attempt > 0 : state === 'failed_retryable',
      )
      .flatMap((record) => {
        const operation = this.#operations.get(record.recordId)
        if (operation === undefined || (record.reconcileAtMs ?? Infinity) > nowMs) return []
        const { name, version } = operation
        const isOne = operations.some((one) => one.name === name && one.version === version)
        if (isOne !== isKnown) return []
        return [{ name, version, record: { ...toView(record), result: undefined } }]
      })
      .toSorted((one, other) => Number(one.record.reconcileAt) - Number(other.record.reconcileAt))
  }

  #takeUnknown(request: UnknownRequest): DueUnknown[] {
    const { limit, againMs, withoutOperations = [], withoutTenants = [] } = request
    const left = new Set(withoutOperations.map(({ name, version }) => laneOf(name, version)))
    const due = this.#all()
      .filter(({ state, tenant, reconcileAtMs = Infinity }) => {
        const isDue = state === 'unknown' && reconcileAtMs <= this.#nowMs
        return isDue && !withoutTenants.includes(tenant)
      })
      .toSorted((one, other) => one.reconcileAtMs! - other.reconcileAtMs!)
      .map((item) => {
        const operation = this.#operations.get(item.recordId)
        const lane = laneOf(operation?.name ?? item.operation, operation?.version)
        return { lane, tenant: item.tenant, item }
      })
      .filter(({ lane }) => !left.has(lane))
    return this.#unknownTurns.take(due, { limit }).map((record) => {
      const reconcileAtMs = this.#nowMs + againMs
      const write = this.#put({ ...record, tries: record.tries + 1, reconcileAtMs })
      return { record: toView(write), operation: this.#load(write.recordId) }
    })
  }

  #operatorStore(): OperatorStore {
    return {
      takeUnknown: async (request) => this.#takeUnknown(request),
      postpone: async ({ recordId, attempt, tries, inMs }) => {
        const record = this.#find({ recordId })
        if (record?.state !== 'unknown' || record.attempt !== attempt) return false
        if (tries !== undefined && record.tries !== tries) return false
        const reconcileAtMs = inMs === undefined ? undefined : this.#nowMs + inMs
        this.#put({ ...record, reconcileAtMs })
        return true
      },
      act: async (act, by) => {
        const { outcome, detail = '{}' } = this.#carryOut(act)
        if (outcome.kind !== 'done') return outcome
        const { subject } = outcome
        this.#audit.unshift({ at: new Date(this.#nowMs), act: act.kind, subject, ...by, detail })
        return outcome
      },
      audit: async ({ subject, limit }) =>
        this.#audit
          .filter((entry) => subject === undefined || entry.subject === subject)
          .slice(0, limit),
      discarded: async ({ recordId, limit }) =>
        this.#discarded.filter((reply) => reply.recordId === recordId).slice(0, limit),
    }
  }

  #carryOut(act: Act): { outcome: ActOutcome; detail?: string | undefined } {
    if (act.kind === 'retry_message' || act.kind === 'drop_message') {
      const { messageId: subject } = act
      const message = this.#outbox.find(subject)
      if (message === undefined) return { outcome: { kind: 'not_found' } }
      const decision = decideMessageAct(message, act)
      if (decision.kind === 'already') return { outcome: { kind: 'already', subject } }
      const { state: reason } = message
      if (decision.kind === 'refused') return { outcome: { kind: 'refused', subject, reason } }
      this.#outbox.revise(message, decision.to)
      return { outcome: { kind: 'done', subject }, detail: decision.detail }
    }
    const [record, phase] = this.#subjectOf(act)
    const decision = decideAct(record, phase, act, this.#nowMs)
    if (record === undefined || decision.record === undefined) return decision
    this.#put(decision.record)
    if (decision.discarded !== undefined) this.#discard(decision.discarded)
    if (decision.phase !== undefined) this.#change(record.recordId, decision.phase)
    return decision
  }

  /** The record of an act, and the phase that the act may change or must respect. */
  #subjectOf(act: RecordAct): readonly [StoredRecord | undefined, StoredPhase | undefined] {
    if (act.kind === 'conclude') {
      const found = this.#findExternal(act.phase)
      return [found && this.#find({ recordId: found.recordId }), found?.phase]
    }
    const record = this.#find(act.ref)
    if (act.kind !== 'discard_reply' || record === undefined) return [record, undefined]
    return [record, this.#findExternal({ recordId: record.recordId })?.phase]
  }

  #discard({ recordId, attempt, result = NO_BYTES }: StoredRecord): void {
    const operation = this.#load(recordId)
    const discardedAt = new Date(this.#nowMs)
    this.#discarded.unshift({ recordId, attempt, discardedAt, result, operation })
    this.#operations.delete(recordId)
    this.#phases.delete(recordId)
  }

  #findExternal(ref: PhaseRef): { recordId: string; phase: StoredPhase | undefined } | undefined {
    if ('recordId' in ref) {
      const phases = [...this.#phasesOf(ref.recordId).values()]
        .filter(({ kind }) => kind === 'external')
        .toSorted((one, other) => other.number - one.number)
      const open = phases.find(({ state }) => state === 'intended')
      return { recordId: ref.recordId, phase: open ?? phases[0] }
    }
    const isMeant = (phase: StoredPhase) =>
      'downstreamKey' in ref
        ? phase.downstreamKey === ref.downstreamKey
        : phase.providerId === ref.providerId
    for (const [recordId, phases] of [...this.#phases].toReversed()) {
      const phase = [...phases.values()].findLast((one) => one.kind === 'external' && isMeant(one))
      if (phase !== undefined) return { recordId, phase }
    }
    return undefined
  }

  get #nowMs(): number {
    return this.#clock.nowMs()
  }

  #all(): StoredRecord[] {
    return [...this.#records.values()]
  }

  #find(ref: RecordRef): StoredRecord | undefined {
    if (ref.identity !== undefined) return this.#records.get(ref.identity)
    return this.#all().find(({ recordId }) => recordId === ref.recordId)
  }

  #apply<Outcome>({ outcome, write }: Decision<Outcome>): Outcome {
    if (write !== undefined) this.#put(write)
    return outcome
  }

  #put(record: StoredRecord): StoredRecord {
    this.#records.set(record.identity, record)
    return record
  }

  #remove({ identity, recordId }: StoredRecord): void {
    this.#records.delete(identity)
    this.#operations.delete(recordId)
    this.#phases.delete(recordId)
  }

  #phasesOf(recordId: string): ReadonlyMap<string, StoredPhase> {
    return this.#phases.get(recordId) ?? new Map()
  }

  #change(recordId: string, change: PhaseChange): void {
    const phases = new Map(this.#phasesOf(recordId))
    if (change.kind === 'put') phases.set(change.phase.name, change.phase)
    else phases.delete(change.name)
    this.#phases.set(recordId, phases)
  }
}

/** The name of an operation with its version, or of a scope without one. */
function laneOf(name: string, version: number | undefined): string {
  return JSON.stringify([name, version ?? null])
}

/** Copies the bytes: the caller may reuse its buffer. */
function copied(settlement: Settlement): Settlement {
  if (settlement.kind !== 'complete') return settlement
  return { ...settlement, result: settlement.result.slice() }
}
