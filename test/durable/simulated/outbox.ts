/** The outbox of the simulated store, and the transactions in which messages are added. */
import type { Clock } from '../../../src/core/time/clock.ts'
import type {
  HeldMessage,
  MessageClaim,
  MessageLease,
  MessageSettlement,
  MessageState,
  MessageView,
  NewMessage,
  OutboxStore,
  UnrelayedQuery,
  UnrelayedTopic,
} from '../../../src/core/store/durable-store.ts'
import { InvalidOptionsError, StoreFailedError } from '../../../src/core/errors.ts'
import { NO_ERRORS, addError, readErrors } from '../../../src/stores/kit/messages.ts'
import { SimulatedTurns } from './turns.ts'

/** Writes of a transaction that has not committed. */
export class SimulatedTransaction {
  readonly rows: unknown[] = []
  readonly messages: NewMessage[] = []
  /** Partitions that other transactions wait for until this one has ended. */
  readonly lanes = new Set<string>()
  #end: () => void = () => undefined
  readonly ended: Promise<void>
  isEnded = false

  constructor() {
    this.ended = new Promise((resolve) => {
      this.#end = resolve
    })
  }

  static of(tx: unknown): SimulatedTransaction {
    if (!(tx instanceof SimulatedTransaction)) {
      throw new InvalidOptionsError('this is no transaction of the simulated store')
    }
    if (tx.isEnded) throw failed('use a transaction', 'the transaction has ended')
    return tx
  }

  end(): void {
    this.isEnded = true
    this.#end()
  }
}

interface Message extends NewMessage {
  readonly number: number
  readonly createdAtMs: number
  readonly state: MessageState
  /** Later messages of its partition wait although it is dead. */
  readonly blocks: boolean
  readonly token: string | undefined
  readonly attempt: number
  readonly dueAtMs: number
  readonly endedAtMs: number | undefined
  readonly providerId: string | undefined
  readonly errors: string
}

/** The state after a settlement. A message in it with the same token was settled by a repeat. */
const SETTLED_STATE = {
  done: 'done',
  note: 'held',
  retry: 'ready',
  dead: 'dead',
  return: 'ready',
} as const satisfies Record<MessageSettlement['kind'], MessageState>

export class SimulatedOutbox implements OutboxStore {
  readonly #clock: Clock
  /** Messages in the order of their commits. */
  #messages: Message[] = []
  #number = 0
  /** By lane: the last transaction that added to it. */
  readonly #lanes = new Map<string, SimulatedTransaction>()
  readonly #turns = new SimulatedTurns()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Waits for the transaction that added to the partition before, like a row lock. */
  async add(tx: unknown, message: NewMessage): Promise<void> {
    const lane = laneOf(message)
    const transaction = SimulatedTransaction.of(tx)
    const isKnown = [...this.#messages, ...transaction.messages].some(({ id }) => id === message.id)
    if (isKnown) throw failed('add a message', `there is a message ${message.id} already`)
    if (lane !== undefined && !transaction.lanes.has(lane)) {
      const before = this.#lanes.get(lane)
      this.#lanes.set(lane, transaction)
      transaction.lanes.add(lane)
      // Earlier transactions wait the same way, so it is enough to wait for the last one.
      if (before !== undefined) await before.ended
    }
    SimulatedTransaction.of(tx).messages.push({ ...message, payload: message.payload.slice() })
  }

  /** Applies all writes at once, when the transaction commits. */
  commit({ messages }: SimulatedTransaction): void {
    const nowMs = this.#clock.nowMs()
    for (const message of messages) {
      this.#messages.push({
        ...message,
        number: this.#number++,
        createdAtMs: nowMs,
        state: 'ready',
        blocks: false,
        token: undefined,
        attempt: 0,
        dueAtMs: nowMs + message.delayMs,
        endedAtMs: undefined,
        providerId: undefined,
        errors: NO_ERRORS,
      })
    }
  }

  async claim(claim: MessageClaim): Promise<HeldMessage[]> {
    const { topics, limit, limits, withoutTenants = [], leaseMs, token } = claim
    const nowMs = this.#clock.nowMs()
    const held = this.#messages.filter((message) => {
      return message.state === 'held' && message.token === token && message.dueAtMs > nowMs
    })
    if (held.length > 0) return held.map(toHeld)
    const due = this.#messages
      .filter(
        ({ topic, tenant = '' }) => topics.includes(topic) && !withoutTenants.includes(tenant),
      )
      .filter((message) => this.#isDue(message, nowMs))
      .toSorted((one, other) => one.dueAtMs - other.dueAtMs || one.number - other.number)
      .map((item) => ({ lane: item.topic, tenant: item.tenant ?? '', item }))
    const maxOf = (topic: string) => limits?.[topics.indexOf(topic)] ?? limit
    return this.#turns.take(due, { limit, maxOf }).map((message) => {
      const { attempt } = message
      const dueAtMs = nowMs + leaseMs
      return toHeld(this.#put({ ...message, state: 'held', token, attempt: attempt + 1, dueAtMs }))
    })
  }

  async settle(settlements: readonly MessageSettlement[]): Promise<boolean[]> {
    return settlements.map((settlement) => {
      const message = this.find(settlement.id)
      if (message === undefined || message.token !== settlement.token) return false
      if (message.state !== 'held') return message.state === SETTLED_STATE[settlement.kind]
      this.#put(settled(message, settlement, this.#clock.nowMs()))
      return true
    })
  }

  async renew(leases: readonly MessageLease[], leaseMs: number): Promise<boolean[]> {
    return leases.map(({ id, token }) => {
      const message = this.find(id)
      if (message?.state !== 'held' || message.token !== token) return false
      this.#put({ ...message, dueAtMs: this.#clock.nowMs() + leaseMs })
      return true
    })
  }

  async read(id: string): Promise<MessageView | undefined> {
    const message = this.find(id)
    return message && toView(message)
  }

  async list({ state, limit }: { state: MessageState; limit: number }): Promise<MessageView[]> {
    return this.#messages
      .filter((message) => message.state === state)
      .slice(0, limit)
      .map((message) => ({ ...toView(message), payload: undefined }))
  }

  async prune({ limit, olderThanMs }: { limit: number; olderThanMs: number }): Promise<number> {
    const beforeMs = this.#clock.nowMs() - olderThanMs
    const old = this.#messages
      .filter(({ state, endedAtMs = Infinity }) => {
        return (state === 'done' || state === 'dropped') && endedAtMs < beforeMs
      })
      .slice(0, limit)
    this.#messages = this.#messages.filter((message) => !old.includes(message))
    return old.length
  }

  find(id: string): Message | undefined {
    return this.#messages.find((message) => message.id === id)
  }

  /** Changes a dead message for an operator. Clears its token, so that its last relay is fenced. */
  revise(message: Message, to: 'ready' | 'dropped'): void {
    const nowMs = this.#clock.nowMs()
    const rest = { ...message, token: undefined, blocks: false }
    if (to === 'ready') {
      this.#put({ ...rest, state: 'ready', dueAtMs: nowMs, endedAtMs: undefined })
    } else {
      this.#put({ ...rest, state: 'dropped', endedAtMs: nowMs })
    }
  }

  async unrelayed({ topics, overdueMs, limit }: UnrelayedQuery): Promise<UnrelayedTopic[]> {
    const nowMs = this.#clock.nowMs()
    const found = new Map<string, Message>()
    for (const message of this.#messages.toSorted((one, other) => one.dueAtMs - other.dueAtMs)) {
      const { topic } = message
      if (topics.includes(topic) || found.has(topic)) continue
      if (this.#isDue(message, nowMs - overdueMs)) found.set(topic, message)
    }
    return [...found.values()]
      .toSorted((one, other) => (one.topic < other.topic ? -1 : 1))
      .slice(0, limit)
      .map(({ topic, id, dueAtMs }) => ({ topic, messageId: id, dueAt: new Date(dueAtMs) }))
  }

  #isDue(message: Message, nowMs: number): boolean {
    const { state, dueAtMs, number } = message
    if ((state !== 'ready' && state !== 'held') || dueAtMs > nowMs) return false
    const lane = laneOf(message)
    if (lane === undefined || state === 'held') return true
    const others = this.#messages.filter((other) => laneOf(other) === lane && isWaitedFor(other))
    return !others.some((other) => other.number < number || other.state === 'held')
  }

  #put(message: Message): Message {
    this.#messages = this.#messages.map((one) => (one.id === message.id ? message : one))
    return message
  }
}

function failed(operation: string, why: string): StoreFailedError {
  const cause = new Error(why)
  return new StoreFailedError({ store: 'simulated', operation, cause, failure: 'rejected' })
}

function isWaitedFor({ state, blocks }: Message): boolean {
  return state === 'ready' || state === 'held' || (state === 'dead' && blocks)
}

function laneOf({ topic, partition }: NewMessage): string | undefined {
  return partition === undefined ? undefined : JSON.stringify([topic, partition])
}

function settled(message: Message, settlement: MessageSettlement, nowMs: number): Message {
  const { attempt } = message
  const withError = (error: string) => addError(message.errors, { atMs: nowMs, attempt, error })
  switch (settlement.kind) {
    case 'done': {
      const providerId = settlement.providerId ?? message.providerId
      return { ...message, state: 'done', providerId, endedAtMs: nowMs }
    }
    case 'note':
      return { ...message, providerId: settlement.providerId }
    case 'retry': {
      const errors = withError(settlement.error)
      return { ...message, state: 'ready', errors, dueAtMs: nowMs + settlement.delayMs }
    }
    case 'dead': {
      const errors = withError(settlement.error)
      const { blocks } = settlement
      return { ...message, state: 'dead', errors, blocks, endedAtMs: nowMs }
    }
    case 'return':
      return { ...message, state: 'ready', attempt: attempt - 1, dueAtMs: nowMs }
  }
}

function toHeld(message: Message): HeldMessage {
  const { id, topic, tenant, key, partition, payload, attempt, providerId, createdAtMs } = message
  const createdAt = new Date(createdAtMs)
  const token = message.token ?? ''
  return { id, token, topic, tenant, key, partition, payload, attempt, providerId, createdAt }
}

function toView(message: Message): MessageView {
  const { id, topic, tenant, key, partition, payload, state, attempt } = message
  const { providerId, endedAtMs } = message
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
    errors: readErrors(message.errors),
    providerId,
    createdAt: new Date(message.createdAtMs),
    dueAt: isOpen ? new Date(message.dueAtMs) : undefined,
    endedAt: endedAtMs === undefined ? undefined : new Date(endedAtMs),
  }
}
