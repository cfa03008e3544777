/**
 * The simplest possible durable store: everything is in arrays and maps in memory. The pure
 * functions of the core decide about records and phases. Decisions about messages follow the
 * contract by reading all messages. The contract leaves the order of turns to the store, so the
 * model takes the choice of the store under test and judges it.
 */
import {
  decideAct,
  decideStep,
  type PhaseChange,
  type RecordAct,
} from '../../src/stores/kit/decide-durable.ts'
import { NO_BYTES } from '../../src/core/bytes.ts'
import {
  decideClaim,
  decideReap,
  decideRenew,
  decideResolve,
  decideSettle,
  decideSweep,
  toSwept,
  toView,
  type Decision,
} from '../../src/core/record/decide.ts'
import type {
  DueOperation,
  DueQuery,
  DurableStore,
  HeldMessage,
  MessageClaim,
  MessageSettlement,
  MessageState,
  MessageView,
  NewMessage,
  NewOperation,
  Step,
  StepOutcome,
  StoredOperation,
  StoredPhase,
} from '../../src/core/store/durable-store.ts'
import type {
  Act,
  Actor,
  ActOutcome,
  AuditEntry,
  DiscardedReply,
  DueUnknown,
  PhaseRef,
  UnknownRequest,
} from '../../src/core/store/operator-store.ts'
import { decideMessageAct, toErrorText } from '../../src/stores/kit/messages.ts'
import type { StoredRecord } from '../../src/core/record/record.ts'
import type { Lease, RecordRef, Store } from '../../src/core/store/store.ts'
import type { FakeClock } from '../../src/testing/fake-clock.ts'
import { TurnsJudge, type TurnLimits, type WaitingItem } from './judge-turns.ts'

interface ModelOperation extends NewOperation {
  phases: StoredPhase[]
}

interface ModelMessage extends NewMessage {
  state: MessageState
  token: string | undefined
  attempt: number
  errors: MessageView['errors']
  providerId: string | undefined
  createdAtMs: number
  dueAtMs: number
  endedAtMs: number | undefined
  blocks: boolean
}

export interface DurableModel {
  readonly store: Store & { readonly durable: DurableStore }
  readonly transact: (work: (tx: unknown) => void | Promise<void>) => Promise<void>
  /** Calls in which the store has a choice. The model takes the ids that the store has chosen. */
  readonly turns: ModelTurns
}

export interface ModelTurns {
  readonly claim: (request: MessageClaim, chosen: readonly string[]) => Judgement<HeldMessage>
  readonly takeUnknown: (
    request: UnknownRequest,
    chosen: readonly string[],
  ) => Judgement<DueUnknown>
  readonly due: (query: DueQuery, chosen: readonly string[]) => Judgement<DueOperation>
  /** Call this after a call to the store that the model did not follow. */
  readonly forget: () => void
}

export interface Judgement<Item> {
  /** The rules that the choice breaks. */
  readonly faults: readonly string[]
  readonly answer: readonly Item[]
}

export function durableModel(clock: FakeClock): DurableModel {
  const model = new Model(clock)
  const { store, turns } = model
  return { store, turns, transact: (work) => model.transact(work) }
}

class Model {
  readonly #clock: FakeClock
  #records = new Map<string, StoredRecord>()
  #operations = new Map<string, ModelOperation>()
  #messages: ModelMessage[] = []
  #audit: AuditEntry[] = []
  readonly #discarded: DiscardedReply[] = []
  readonly store: Store & { readonly durable: DurableStore }
  readonly turns: ModelTurns

  constructor(clock: FakeClock) {
    this.#clock = clock
    this.store = { name: 'model', ...this.#recordCalls(), durable: this.#durableCalls() }
    this.turns = this.#judgedCalls()
  }

  get #nowMs(): number {
    return this.#clock.nowMs()
  }

  /** Removes the messages that `work` has added if it throws anything, also `undefined`. */
  async transact(work: (tx: unknown) => void | Promise<void>): Promise<void> {
    const before = this.#messages.length
    try {
      await work(this)
    } catch (error) {
      this.#messages.length = before
      throw error
    }
  }

  #recordCalls(): Omit<Store, 'name'> {
    const nowMs = () => this.#nowMs
    return {
      claim: async (requests) =>
        requests.map((request) => {
          const { identity } = request
          return this.#apply(decideClaim(this.#records.get(identity), request, nowMs()))
        }),
      settle: async (settlements) =>
        settlements.map((one) =>
          this.#apply(decideSettle(this.#records.get(one.lease.identity), one, nowMs())),
        ),
      renew: async (renewals) =>
        renewals.map((one) => {
          const write = decideRenew(this.#records.get(one.identity), one, nowMs())
          if (write !== undefined) this.#put(write)
          return write !== undefined
        }),
      resolve: async (verdicts) =>
        verdicts.map((one) => this.#apply(decideResolve(this.#find(one.ref), one, nowMs()))),
      sweep: async () =>
        [...this.#records.values()].flatMap((record) => {
          const write = decideSweep(record, nowMs())
          if (write === undefined) return []
          this.#put(write)
          return [toSwept(write)]
        }),
      reap: async (request) => {
        const report = { removed: 0, expired: 0, abandoned: 0 }
        for (const record of [...this.#records.values()]) {
          const decision = decideReap(record, request, nowMs())
          if (decision === undefined) continue
          report[decision.kind]++
          if (decision.kind !== 'abandoned') this.#remove(record)
          if (decision.write !== undefined) this.#put(decision.write)
        }
        return report
      },
      read: async (ref) => {
        const record = this.#find(ref)
        return record && toView(record)
      },
      list: async ({ state }) =>
        [...this.#records.values()].filter((record) => record.state === state).map(toView),
    }
  }

  #durableCalls(): DurableStore {
    return {
      phases: {
        advance: async (lease, work) => {
          const before = this.#messages.length
          let isKept = false
          try {
            const step = await work(this)
            const taken = this.#step(lease, step)
            isKept = taken.isKept
            return taken.outcome
          } finally {
            if (!isKept) this.#messages.length = before
          }
        },
        record: async (lease, step) => this.#step(lease, step).outcome,
        load: async (recordId) => {
          return this.#load(recordId)
        },
        due: async (query) => this.#dueOf(query),
        orphans: async ({ operations }) =>
          this.#due().flatMap(({ recordId }) => {
            const { name, version } = this.#operations.get(recordId)!
            const isKnown = operations.some((one) => one.name === name && one.version === version)
            return isKnown ? [] : [{ name, version, recordId }]
          }),
      },
      outbox: {
        add: (_tx, message) => this.#add(message),
        claim: () => Promise.reject(new Error('call turns.claim() with the choice of the store')),
        settle: async (settlements) => settlements.map((one) => this.#settle(one)),
        renew: async (leases, leaseMs) =>
          leases.map(({ id, token }) => {
            const message = this.#messages.find((one) => one.id === id)
            if (message?.state !== 'held' || message.token !== token) return false
            message.dueAtMs = this.#nowMs + leaseMs
            return true
          }),
        read: async (id) => {
          const message = this.#messages.find((one) => one.id === id)
          return message && toMessageView(message, message.payload)
        },
        list: async ({ state }) =>
          this.#messages
            .filter((one) => one.state === state)
            .map((one) => toMessageView(one, undefined)),
        prune: async ({ olderThanMs }) => {
          const before = this.#messages.length
          this.#messages = this.#messages.filter(({ state, endedAtMs }) => {
            const isOver = state === 'done' || state === 'dropped'
            return !(isOver && endedAtMs! < this.#nowMs - olderThanMs)
          })
          return before - this.#messages.length
        },
      },
      operator: {
        takeUnknown: () =>
          Promise.reject(new Error('call turns.takeUnknown() with the choice of the store')),
        postpone: async ({ recordId, attempt, tries, inMs }) => {
          const record = this.#find({ recordId })
          if (record?.state !== 'unknown' || record.attempt !== attempt) return false
          if (tries !== undefined && record.tries !== tries) return false
          this.#put({
            ...record,
            reconcileAtMs: inMs === undefined ? undefined : this.#nowMs + inMs,
          })
          return true
        },
        act: async (act, by) => this.#act(act, by),
        audit: async ({ subject }) =>
          this.#audit
            .filter((one) => subject === undefined || one.subject === subject)
            .toReversed(),
        discarded: async ({ recordId }) =>
          this.#discarded.filter((reply) => reply.recordId === recordId).toReversed(),
      },
    }
  }

  /** Records whose reconcile time has passed, the longest due first. */
  #byTime(): StoredRecord[] {
    return [...this.#records.values()]
      .filter(({ reconcileAtMs }) => reconcileAtMs !== undefined && reconcileAtMs <= this.#nowMs)
      .toSorted((one, other) => one.reconcileAtMs! - other.reconcileAtMs!)
  }

  #due(): StoredRecord[] {
    return this.#byTime().filter(({ state, recordId, expiresAtMs, attempt }) => {
      if (!this.#operations.has(recordId)) return false
      if (state === 'failed_retryable') return true
      return state === 'pending' && (expiresAtMs > this.#nowMs || attempt > 0)
    })
  }

  #step(lease: Lease, step: Step): { outcome: StepOutcome; isKept: boolean } {
    const record = this.#records.get(lease.identity)
    const phases = record && this.#operations.get(record.recordId)?.phases
    const before = phases?.find(({ name }) => name === step.phase?.name)
    const { outcome, write, phase } = decideStep(record, before, { lease, step }, this.#nowMs)
    if (write === undefined) return { outcome, isKept: false }
    const { recordId } = write
    if (step.operation !== undefined && !this.#operations.has(recordId)) {
      this.#operations.set(recordId, { ...step.operation, phases: [] })
    }
    this.#put(write)
    if (phase !== undefined) this.#change(recordId, phase)
    return { outcome, isKept: true }
  }

  #change(recordId: string, change: PhaseChange): void {
    const operation = this.#operations.get(recordId)!
    const name = change.kind === 'put' ? change.phase.name : change.name
    const others = operation.phases.filter((one) => one.name !== name)
    const phases = change.kind === 'put' ? [...others, change.phase] : others
    operation.phases = phases.toSorted((one, other) => one.number - other.number)
  }

  #add(message: NewMessage): void {
    this.#messages.push({
      ...message,
      state: 'ready',
      token: undefined,
      attempt: 0,
      errors: [],
      providerId: undefined,
      createdAtMs: this.#nowMs,
      dueAtMs: this.#nowMs + message.delayMs,
      endedAtMs: undefined,
      blocks: false,
    })
  }

  #judgedCalls(): ModelTurns {
    const judges = { claim: new TurnsJudge(), unknown: new TurnsJudge(), due: new TurnsJudge() }
    return {
      claim: (request, chosen) => this.#claim(judges.claim, request, chosen),
      takeUnknown: (request, chosen) => this.#takeUnknown(judges.unknown, request, chosen),
      due: (query, chosen) => {
        const due = this.#dueOf(query)
        const waiting = due.map(({ name, version, record }) =>
          toWaiting(record, laneOf(name, version), record.reconcileAt!.getTime()),
        )
        const faults = judges.due.judge(waiting, chosen, limitsOf(query))
        return { faults, answer: due.filter(({ record }) => chosen.includes(record.recordId)) }
      },
      forget: () => {
        for (const judge of Object.values(judges)) judge.forget()
      },
    }
  }

  #claim(
    judge: TurnsJudge,
    request: MessageClaim,
    chosen: readonly string[],
  ): Judgement<HeldMessage> {
    const { topics, limit, limits, withoutTenants = [], leaseMs, token } = request
    const own = this.#messages.filter(
      (one) => one.state === 'held' && one.token === token && one.dueAtMs > this.#nowMs,
    )
    if (own.length > 0) return { faults: [], answer: own.map(toHeld) }
    const due = this.#messages.filter(
      (one) =>
        topics.includes(one.topic) &&
        !withoutTenants.includes(one.tenant ?? '') &&
        this.#mayBeTaken(one),
    )
    const waiting = due.map(({ id, topic, tenant = '', dueAtMs }) => {
      return { id, lane: topic, tenant, dueAtMs }
    })
    const maxOf = (topic: string) => limits?.[topics.indexOf(topic)] ?? limit
    const faults = judge.judge(waiting, chosen, { limit, maxOf })
    const taken = due.filter(({ id }) => chosen.includes(id))
    const answer = taken.map((message) => {
      message.state = 'held'
      message.token = token
      message.attempt++
      message.dueAtMs = this.#nowMs + leaseMs
      return toHeld(message)
    })
    return { faults, answer }
  }

  #takeUnknown(
    judge: TurnsJudge,
    request: UnknownRequest,
    chosen: readonly string[],
  ): Judgement<DueUnknown> {
    const { againMs, withoutOperations = [], withoutTenants = [] } = request
    const excludedLanes = withoutOperations.map(({ name, version }) => laneOf(name, version))
    const due = this.#byTime().filter(
      ({ state, tenant }) => state === 'unknown' && !withoutTenants.includes(tenant),
    )
    const waiting = due
      .map((record) => {
        const { name, version } = this.#operations.get(record.recordId) ?? {}
        const lane = laneOf(name ?? record.operation, version)
        return toWaiting(record, lane, record.reconcileAtMs!)
      })
      .filter(({ lane }) => !excludedLanes.includes(lane))
    const faults = judge.judge(waiting, chosen, limitsOf(request))
    const taken = due.filter(({ recordId }) => chosen.includes(recordId))
    const answer = taken.map((record) => {
      const write = { ...record, tries: record.tries + 1, reconcileAtMs: this.#nowMs + againMs }
      this.#put(write)
      return { record: toView(write), operation: this.#operations.get(record.recordId) }
    })
    return { faults, answer }
  }

  #dueOf({ operations, withoutTenants = [] }: DueQuery): DueOperation[] {
    return this.#due().flatMap((record) => {
      const { name, version } = this.#operations.get(record.recordId)!
      const isKnown = operations.some((one) => one.name === name && one.version === version)
      if (!isKnown || withoutTenants.includes(record.tenant)) return []
      return [{ name, version, record: toView(record) }]
    })
  }

  #mayBeTaken(message: ModelMessage): boolean {
    if (message.state !== 'ready' && message.state !== 'held') return false
    if (message.dueAtMs > this.#nowMs) return false
    return message.partition === undefined || this.#openInPartition(message)[0] === message
  }

  /** The messages of a partition that later messages wait for, in their order. */
  #openInPartition({ topic, partition }: ModelMessage): ModelMessage[] {
    return this.#messages.filter(
      (one) =>
        one.topic === topic &&
        one.partition === partition &&
        (one.state === 'ready' || one.state === 'held' || (one.state === 'dead' && one.blocks)),
    )
  }

  #settle(settlement: MessageSettlement): boolean {
    const message = this.#messages.find((one) => one.id === settlement.id)
    if (message === undefined || message.token !== settlement.token) return false
    const { state } = message
    if (state !== 'held') return state === STATE_AFTER[settlement.kind]
    message.state = STATE_AFTER[settlement.kind]
    const { attempt } = message
    if (settlement.kind === 'retry' || settlement.kind === 'dead') {
      const error = toErrorText(settlement.error)
      const at = new Date(this.#nowMs)
      message.errors = [...message.errors, { at, attempt, error }].slice(-10)
    }
    if (settlement.kind === 'retry') message.dueAtMs = this.#nowMs + settlement.delayMs
    if (settlement.kind === 'return') {
      message.dueAtMs = this.#nowMs
      message.attempt--
    }
    if (settlement.kind === 'dead') message.blocks = settlement.blocks
    if (settlement.kind === 'done' || settlement.kind === 'note') {
      message.providerId = settlement.providerId ?? message.providerId
    }
    if (settlement.kind === 'done' || settlement.kind === 'dead') message.endedAtMs = this.#nowMs
    return true
  }

  #act(act: Act, by: Actor): ActOutcome {
    const { outcome, detail } = this.#perform(act)
    if (outcome.kind !== 'done') return outcome
    const { subject } = outcome
    const at = new Date(this.#nowMs)
    this.#audit.push({ at, act: act.kind, subject, ...by, detail: detail ?? '{}' })
    return outcome
  }

  #perform(act: Act): { outcome: ActOutcome; detail?: string } {
    if (act.kind === 'retry_message' || act.kind === 'drop_message') {
      const message = this.#messages.find((one) => one.id === act.messageId)
      if (message === undefined) return { outcome: { kind: 'not_found' } }
      const { id: subject, state: reason } = message
      const decision = decideMessageAct(message, act)
      if (decision.kind === 'already') return { outcome: { kind: 'already', subject } }
      if (decision.kind === 'refused') return { outcome: { kind: 'refused', subject, reason } }
      message.state = decision.to
      message.token = undefined
      message.dueAtMs = this.#nowMs
      message.endedAtMs = decision.to === 'dropped' ? this.#nowMs : undefined
      return { outcome: { kind: 'done', subject }, detail: decision.detail }
    }
    const [record, phase] = this.#subjectOf(act)
    const decision = decideAct(record, phase, act, this.#nowMs)
    if (record !== undefined && decision.record !== undefined) {
      this.#put(decision.record)
      if (decision.discarded !== undefined) this.#discard(decision.discarded)
      if (decision.phase !== undefined) this.#change(record.recordId, decision.phase)
    }
    return decision
  }

  #subjectOf(act: RecordAct): readonly [StoredRecord | undefined, StoredPhase | undefined] {
    if (act.kind === 'conclude') return this.#effect(act.phase)
    const record = this.#find(act.ref)
    if (act.kind !== 'discard_reply' || record === undefined) return [record, undefined]
    return this.#effect({ recordId: record.recordId })
  }

  #discard({ recordId, attempt, result = NO_BYTES }: StoredRecord): void {
    const operation = this.#load(recordId)
    const discardedAt = new Date(this.#nowMs)
    this.#discarded.push({ recordId, attempt, discardedAt, result, operation })
    this.#operations.delete(recordId)
  }

  #load(recordId: string): StoredOperation | undefined {
    const operation = this.#operations.get(recordId)
    if (operation === undefined) return undefined
    const phases = operation.phases.toSorted((one, other) => one.number - other.number)
    return { ...operation, phases }
  }

  #effect(ref: PhaseRef): readonly [StoredRecord | undefined, StoredPhase | undefined] {
    for (const [recordId, { phases }] of this.#operations) {
      const external = phases
        .filter(({ kind }) => kind === 'external')
        .toSorted((one, other) => one.number - other.number)
      const phase =
        'recordId' in ref
          ? (external.findLast(({ state }) => state === 'intended') ?? external.at(-1))
          : external.find((one) =>
              'downstreamKey' in ref
                ? one.downstreamKey === ref.downstreamKey
                : one.providerId === ref.providerId,
            )
      const isMeant = 'recordId' in ref ? ref.recordId === recordId : phase !== undefined
      if (isMeant) return [this.#find({ recordId }), phase]
    }
    return ['recordId' in ref ? this.#find(ref) : undefined, undefined]
  }

  #find(ref: RecordRef): StoredRecord | undefined {
    if (ref.identity !== undefined) return this.#records.get(ref.identity)
    return [...this.#records.values()].find(({ recordId }) => recordId === ref.recordId)
  }

  #apply<Outcome>({ outcome, write }: Decision<Outcome>): Outcome {
    if (write !== undefined) this.#put(write)
    return outcome
  }

  #put(record: StoredRecord): void {
    const before = this.#records.get(record.identity)
    if (before !== undefined && before.recordId !== record.recordId) this.#remove(before)
    this.#records.set(record.identity, record)
  }

  #remove({ identity, recordId }: StoredRecord): void {
    this.#records.delete(identity)
    this.#operations.delete(recordId)
  }
}

const STATE_AFTER = {
  done: 'done',
  note: 'held',
  retry: 'ready',
  dead: 'dead',
  return: 'ready',
} as const

/** Names the lane of an operation. `version` is `undefined` for the operation of a scope. */
function laneOf(name: string, version: number | undefined): string {
  return JSON.stringify([name, version ?? null])
}

function toWaiting(
  { recordId, tenant }: Pick<StoredRecord, 'recordId' | 'tenant'>,
  lane: string,
  dueAtMs: number,
): WaitingItem {
  return { id: recordId, lane, tenant, dueAtMs }
}

function limitsOf({ limit }: { readonly limit: number }): TurnLimits {
  return { limit, maxOf: () => limit }
}

function toHeld(message: ModelMessage): HeldMessage {
  const { id, token = '', topic, tenant, key, partition, payload, attempt, providerId } = message
  const createdAt = new Date(message.createdAtMs)
  return { id, token, topic, tenant, key, partition, payload, attempt, providerId, createdAt }
}

function toMessageView(message: ModelMessage, payload: Uint8Array | undefined): MessageView {
  const { id, topic, tenant, key, partition, state, attempt, errors, providerId } = message
  const isOpen = state === 'ready' || state === 'held'
  return {
    id,
    topic,
    tenant,
    key,
    partition,
    payload,
    state,
    attempt,
    errors,
    providerId,
    createdAt: new Date(message.createdAtMs),
    dueAt: isOpen ? new Date(message.dueAtMs) : undefined,
    endedAt: message.endedAtMs === undefined ? undefined : new Date(message.endedAtMs),
  }
}
