import { expect } from 'vitest'
import {
  MESSAGE_STATES,
  type DueOperation,
  type HeldMessage,
  type MessageSettlement,
  type NewMessage,
  type PhaseStep,
  type Step,
  type StepEnd,
} from '../../src/core/store/durable-store.ts'
import type { Act, DiscardedReply, DueUnknown } from '../../src/core/store/operator-store.ts'
import { newRecordId, newToken } from '../../src/core/record/identity.ts'
import type { ClaimRequest, Lease, RecordRef, Settlement } from '../../src/core/store/store.ts'
import type { DurableFixture } from '../../src/testing/durable-cases.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { bytes, claimRequest } from '../../src/testing/store-cases/store-case.ts'
import { seededRandom } from '../process/random.ts'
import {
  durableModel,
  type DurableModel,
  type Judgement,
  type ModelTurns,
} from './durable-model.ts'

const KEYS = [
  { tenant: 'one', key: 'a' },
  { tenant: 'one', key: 'b' },
  { tenant: 'one', key: 'c' },
  { tenant: 'two', key: 'a' },
  { tenant: 'three', key: 'a' },
]
const EXCLUDED_TENANTS = [undefined, [], ['one'], ['two', 'three']]
const LIMITS = [1, 1, 2, 3, 1000]
const EXPIRIES = [
  { afterExpiry: 'new' },
  { afterExpiry: 'new' },
  { afterExpiry: 'refuse' },
  { afterExpiry: 'refuse', refuseForMs: 100 },
] as const
const TOPICS = ['receipts', 'invoices']
const SPANS_MS = [0, 1, 50, 100, 200]
const OPERATIONS = [
  { name: 'pay', version: 1 },
  { name: 'pay', version: 2 },
]

type Target = Pick<DurableFixture, 'store' | 'transact'>
/** A call that the store and its model get in the same way. */
type Call = (target: Target) => Promise<unknown>

/** A call in which the store has a choice. The model then follows that choice. */
interface Choice {
  readonly ask: (target: Target) => Promise<ChoiceAnswer>
}

interface ChoiceAnswer {
  readonly answer: readonly TurnItem[]
  /** Makes the same choice in the model. */
  readonly follow: (turns: ModelTurns) => Judgement<TurnItem>
}

/** An item that stores return in turns of tenants and lanes. */
type TurnItem = HeldMessage | DueUnknown | DueOperation

function idOf(item: TurnItem): string {
  return 'record' in item ? item.record.recordId : item.id
}

const REFUSED = new Error('the work was refused')

/** Makes random calls, many of them with a lease or an id that no longer exists. */
class RandomCalls {
  readonly #random: () => number
  readonly #clock: FakeClock
  #requests: ClaimRequest[] = [claimRequest(KEYS[0])]
  #leases: Lease[] = []
  #held: HeldMessage[] = []
  #messageIds: string[] = [newRecordId(0)]
  #tokens: string[] = [newToken()]

  constructor(seed: number, clock: FakeClock) {
    this.#random = seededRandom(seed)
    this.#clock = clock
  }

  next(): Call | Choice {
    const move = this.of(MOVES)
    switch (move) {
      case 'claim': {
        const request = this.#claim()
        return async ({ store }) => this.#learn(await store.claim([request]))
      }
      case 'settle': {
        const settlement = this.#settlement()
        return ({ store }) => store.settle([settlement])
      }
      case 'step': {
        const [lease, step] = [this.#lease(), this.#step()]
        return ({ store }) => store.durable.phases.record(lease, step)
      }
      case 'advance':
        return this.#advance()
      case 'sweep':
        return async ({ store }) => byId(await store.sweep({ limit: 1000 }), 'recordId')
      case 'reap': {
        const late = { result: bytes('late'), retentionMs: 50 }
        const abandoned = this.of([undefined, late])
        // A tombstone whose time is over may go in the call that makes it, or in the next one.
        return async ({ store }) => {
          const request = { limit: 1000, abandoned }
          const [one, two] = [await store.reap(request), await store.reap(request)]
          const { removed, expired } = two
          return { ...one, removed: one.removed + removed, expired: one.expired + expired }
        }
      }
      case 'take unknown':
        return this.#takeUnknown()
      case 'due':
        return this.#due()
      case 'postpone': {
        const { recordId } = this.of(this.#requests)
        const target = {
          recordId,
          attempt: this.of([1, 2]),
          tries: this.of([undefined, 0, 1]),
          inMs: this.of([undefined, 0, 50]),
        }
        return ({ store }) => store.durable.operator.postpone(target)
      }
      case 'act':
        return this.#act()
      case 'add': {
        const messages = this.#messages()
        const rollsBack = this.#random() < 0.2
        return ({ store, transact }) =>
          catchRefusal(() =>
            transact(async (tx) => {
              for (const message of messages) await store.durable.outbox.add(tx, message)
              if (rollsBack) throw REFUSED
            }),
          )
      }
      case 'claim messages':
        return this.#claimMessages()
      case 'settle messages': {
        const settlements = uniqueById(this.#some(() => this.#messageSettlement()))
        return ({ store }) => store.durable.outbox.settle(settlements)
      }
      case 'renew messages': {
        const leases = uniqueById(this.#some(() => this.#messageLease()))
        const leaseMs = this.of(SPANS_MS)
        return ({ store }) => store.durable.outbox.renew(leases, leaseMs)
      }
      case 'prune': {
        const olderThanMs = this.of(SPANS_MS)
        return ({ store }) => store.durable.outbox.prune({ limit: 1000, olderThanMs })
      }
      case 'time':
        this.#clock.advance(this.of(SPANS_MS))
        return () => Promise.resolve()
    }
  }

  of<Item>(items: readonly Item[]): Item {
    return items[Math.floor(this.#random() * items.length)]!
  }

  #some<Item>(make: () => Item): Item[] {
    return Array.from({ length: this.of([1, 1, 2, 4]) }, make)
  }

  #claim(): ClaimRequest {
    const request = claimRequest({
      ...this.of(KEYS),
      mode: this.of(['hold', 'hold', 'accept', 'take', 'take', 'find']),
      leaseMs: this.of([1, 50, 100, 100]),
      retentionMs: this.of([1, 100, 200]),
      onLapse: this.of(['unknown', 'resume']),
      maxLapses: this.of([2, 5]),
      idSeed: this.of([undefined, newToken()]),
      ...this.of(EXPIRIES),
    })
    this.#requests = [...this.#requests.slice(-12), request]
    return request
  }

  #learn<Outcomes extends readonly { kind: string; lease?: Lease }[]>(outcomes: Outcomes) {
    for (const { lease } of outcomes) {
      if (lease !== undefined) this.#leases = [...this.#leases.slice(-5), lease]
    }
    return outcomes
  }

  #lease(): Lease {
    if (this.#leases.length > 0 && this.#random() < 0.9) return this.of(this.#leases)
    const { identity, token } = this.of(this.#requests)
    return { identity, token, attempt: this.of([1, 2]) }
  }

  #settlement(): Settlement {
    const lease = this.#lease()
    const errorCode = 'refused'
    const retentionMs = this.of(SPANS_MS)
    const resumeAfterMs = this.of([undefined, 0, 50])
    return this.of<Settlement>([
      { kind: 'complete', lease, result: bytes('settled'), retentionMs },
      { kind: 'release', lease, proof: 'proven', errorCode, retentionMs, resumeAfterMs },
      { kind: 'release', lease, proof: 'declared', errorCode, retentionMs },
      { kind: 'doubt', lease, errorCode, reconcileAfterMs: this.of(SPANS_MS) },
    ])
  }

  /** Every step has an operation, because a phase cannot be stored without one. */
  #step(): Step {
    const operation = { ...this.of(OPERATIONS), input: bytes(this.of(['', 'input'])) }
    const end = this.of<StepEnd | undefined>([
      undefined,
      undefined,
      undefined,
      { kind: 'complete', result: bytes('stepped'), retentionMs: this.of(SPANS_MS) },
      { kind: 'hand_over', afterMs: 0 },
    ])
    return { operation, phase: this.of([undefined, this.#phase(), this.#phase()]), end }
  }

  #phase(): PhaseStep {
    const number = this.of([1, 2, 3])
    const place = { name: `phase ${number}`, number }
    const request = bytes(this.of(['', 'request', 'another']))
    const result = bytes(this.of(['', 'result']))
    // A key that several records share would not say which phase a webhook means.
    const downstreamKey = newToken()
    const providerId = this.of([undefined, newToken()])
    if (number === 1) return { ...place, kind: 'transaction', result }
    return this.of<PhaseStep>([
      { ...place, kind: 'intent', request, downstreamKey },
      { ...place, kind: 'intent', request, downstreamKey },
      { ...place, kind: 'result', result, downstreamKey, providerId },
      { ...place, kind: 'clear' },
    ])
  }

  #advance(): Call {
    const [lease, step, messages] = [this.#lease(), this.#step(), this.#messages()]
    const rollsBack = this.#random() < 0.2
    return async ({ store }) => {
      const outcome = await catchRefusal(() =>
        store.durable.phases.advance(lease, async (tx) => {
          for (const message of messages) await store.durable.outbox.add(tx, message)
          if (rollsBack) throw REFUSED
          return step
        }),
      )
      // The contract does not say whether the work runs at all if the lease is lost.
      return rollsBack ? 'refused' : outcome
    }
  }

  #act(): Call {
    const by = { who: this.of(['ops', 'webhook']), why: 'at random' }
    const kind = this.of(ACTS)
    if (kind === 'retry_message' || kind === 'drop_message') {
      const messageId = this.of(this.#messageIds)
      return async ({ store }) => {
        // The contract does not say whether the retried message or a held one comes first.
        if (kind === 'retry_message' && (await isPartitionHeld(store, messageId))) return 'skipped'
        return store.durable.operator.act({ kind, messageId }, by)
      }
    }
    const act = this.#recordAct(kind)
    return ({ store }) => store.durable.operator.act(act, by)
  }

  #recordAct(kind: Exclude<(typeof ACTS)[number], 'retry_message' | 'drop_message'>): Act {
    const { identity, recordId } = this.of(this.#requests)
    const ref = this.of<RecordRef>([{ identity }, { recordId }])
    const attempt = this.of([undefined, undefined, 1, 2])
    if (kind === 'conclude') {
      const done = { kind: 'done', result: bytes('found'), providerId: newToken() } as const
      const finding = this.of([done, { kind: 'not_executed' } as const])
      return { kind, phase: { recordId }, attempt, finding }
    }
    if (kind === 'resolve') {
      const completed = { kind: 'completed', result: bytes('resolved') } as const
      const verdict = this.of([completed, { kind: 'failed_retryable' } as const])
      return { kind, ref, attempt, verdict, retentionMs: this.of(SPANS_MS) }
    }
    if (kind === 'discard_reply') {
      const idSeed = this.of([undefined, newToken()])
      return { kind, ref, attempt: this.of([1, 2]), idSeed, despiteEffects: this.#random() < 0.7 }
    }
    return { kind, ref }
  }

  #messages(): NewMessage[] {
    const messages = this.#some(() => ({
      id: newRecordId(0),
      topic: this.of(TOPICS),
      tenant: this.of([undefined, 'one', 'one', 'two']),
      key: this.of([undefined, 'key']),
      partition: this.of([undefined, 'p', 'p', 'q']),
      payload: bytes(this.of(['', 'payload'])),
      delayMs: this.of([0, 0, 0, 50]),
    }))
    this.#messageIds = [...this.#messageIds.slice(-20), ...messages.map(({ id }) => id)]
    return messages
  }

  #claimMessages(): Choice {
    const token = this.#random() < 0.15 ? this.of(this.#tokens) : newToken()
    this.#tokens = [...this.#tokens.slice(-3), token]
    const topics = this.of([TOPICS, TOPICS, [TOPICS[0]!]])
    const places = {
      limit: this.of(LIMITS),
      limits: this.of([undefined, undefined, topics.map(() => this.of([0, 1, 2]))]),
      withoutTenants: this.of([...EXCLUDED_TENANTS, ['']]),
    }
    const request = { topics, token, ...places, leaseMs: this.of([1, 50, 100]) }
    return {
      ask: async ({ store }) => {
        const held = await store.durable.outbox.claim(request)
        this.#held = [...this.#held, ...held].slice(-12)
        const ids = held.map(idOf)
        return { answer: held, follow: (turns) => turns.claim(request, ids) }
      },
    }
  }

  #takeUnknown(): Choice {
    const plain = { name: claimRequest().operation, version: undefined }
    const request = {
      limit: this.of(LIMITS),
      againMs: this.of(SPANS_MS),
      withoutOperations: this.of([undefined, [], [OPERATIONS[0]!], [plain, OPERATIONS[1]!]]),
      withoutTenants: this.of(EXCLUDED_TENANTS),
    }
    return {
      ask: async ({ store }) => {
        const taken = await store.durable.operator.takeUnknown(request)
        const ids = taken.map(idOf)
        return { answer: taken, follow: (turns) => turns.takeUnknown(request, ids) }
      },
    }
  }

  #due(): Choice {
    const operations = this.of([OPERATIONS, OPERATIONS, [OPERATIONS[0]!]])
    const query = { operations, limit: this.of(LIMITS), withoutTenants: this.of(EXCLUDED_TENANTS) }
    return {
      ask: async ({ store }) => {
        const due = await store.durable.phases.due(query)
        const ids = due.map(idOf)
        return { answer: due, follow: (turns) => turns.due(query, ids) }
      },
    }
  }

  #messageLease(): { id: string; token: string } {
    if (this.#held.length === 0) return { id: this.of(this.#messageIds), token: newToken() }
    const { id, token } = this.of(this.#held)
    return { id, token: this.#random() < 0.95 ? token : newToken() }
  }

  #messageSettlement(): MessageSettlement {
    const lease = this.#messageLease()
    return this.of<MessageSettlement>([
      { ...lease, kind: 'done', providerId: this.of([undefined, 'provider']) },
      { ...lease, kind: 'note', providerId: 'noted' },
      { ...lease, kind: 'retry', error: 'at random', delayMs: this.of(SPANS_MS) },
      { ...lease, kind: 'dead', error: 'at random', blocks: this.of([true, false]) },
      { ...lease, kind: 'return' },
    ])
  }

  /** Everything that a store returns about the keys and messages of the history. */
  async snapshot({ store }: Target): Promise<unknown> {
    const { phases, outbox, operator } = store.durable
    const records = []
    for (const key of KEYS) {
      const { identity } = claimRequest(key)
      const record = await store.read({ identity })
      const operation = record && (await phases.load(record.recordId))
      records.push({ record, operation })
    }
    const discarded = []
    for (const { recordId } of this.#requests) {
      const replies = await operator.discarded({ recordId, limit: 1000 })
      discarded.push(replies.toSorted(byAttempt))
    }
    const messages = []
    for (const id of this.#messageIds) messages.push(await outbox.read(id))
    const lists = []
    for (const state of MESSAGE_STATES) {
      lists.push(byId(await outbox.list({ state, limit: 1000 }), 'id'))
    }
    const operations = [OPERATIONS[0]!]
    const due = await phases.due({ operations, limit: 1000 })
    return plain({
      records,
      discarded,
      messages,
      lists,
      due: due.map(({ record }) => record.recordId).toSorted(),
      orphans: byId(await phases.orphans({ operations, limit: 1000 }), 'recordId'),
      audit: await operator.audit({ limit: 1000 }),
    })
  }
}

const ACTS = [
  'conclude',
  'conclude',
  'resolve',
  'release',
  'discard_reply',
  'discard_reply',
  'requeue',
  'retry_message',
  'retry_message',
  'drop_message',
] as const

const MOVES = [
  'claim',
  'claim',
  'claim',
  'settle',
  'settle',
  'step',
  'step',
  'step',
  'advance',
  'advance',
  'sweep',
  'reap',
  'take unknown',
  'take unknown',
  'due',
  'postpone',
  'act',
  'act',
  'act',
  'add',
  'claim messages',
  'claim messages',
  'settle messages',
  'settle messages',
  'settle messages',
  'renew messages',
  'prune',
  'time',
  'time',
  'time',
] as const

/** Whether a message is held in the partition of this one. */
async function isPartitionHeld(store: Target['store'], messageId: string): Promise<boolean> {
  const { outbox } = store.durable
  const message = await outbox.read(messageId)
  const held = await outbox.list({ state: 'held', limit: 1000 })
  return held.some(
    ({ topic, partition }) =>
      partition !== undefined && partition === message?.partition && topic === message.topic,
  )
}

async function catchRefusal<Result>(run: () => Promise<Result>): Promise<Result | 'refused'> {
  try {
    return await run()
  } catch (error) {
    if (error !== REFUSED) throw error
    return 'refused'
  }
}

/** Keeps one item for each id: a batch may apply two settlements of one message in any order. */
function uniqueById<Item extends { readonly id: string }>(items: readonly Item[]): Item[] {
  return [...new Map(items.map((item) => [item.id, item])).values()]
}

/** Replies that were discarded at the same time may be in any order. */
function byAttempt(one: DiscardedReply, other: DiscardedReply): number {
  return one.attempt - other.attempt
}

/** Sorts by id, because items of the same age may be in any order. */
function byId<Name extends string, Item extends Readonly<Record<Name, string>>>(
  items: readonly Item[],
  name: Name,
): Item[] {
  return items.toSorted((one, other) => (one[name] < other[name] ? -1 : 1))
}

/** Turns a `Buffer` and a `Uint8Array` with the same bytes into the same text. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return `bytes of ${Buffer.from(value).toString()}`
  if (value instanceof Date || value === null || typeof value !== 'object') return value
  if (Array.isArray(value)) return value.map((item) => plain(item))
  return Object.fromEntries(
    Object.entries(value)
      .filter(([, item]) => item !== undefined)
      .map(([name, item]) => [name, plain(item)]),
  )
}

export interface DurableHistories {
  readonly histories: number
  readonly steps: number
  readonly open: (clock: FakeClock) => Promise<Target> | Target
}

/**
 * Plays random histories on a store and on its model, and compares them. An operator retries no
 * message while another of its partition is held: the contract does not say which comes first.
 */
export async function playDurableHistories({
  histories,
  steps,
  open,
}: DurableHistories): Promise<void> {
  const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
  console.info(`${histories} × ${steps} steps with ONCEKEY_TEST_SEED=${seed}`)
  for (let history = 0; history < histories; history++) {
    const clock = new FakeClock()
    const model = durableModel(clock)
    const target = await open(clock)
    const calls = new RandomCalls(seed + history, clock)
    for (let step = 0; step < steps; step++) {
      const where = `seed ${seed + history}, step ${step}`
      await playNext(calls.next(), where, { model, target })
      if (step % 10 !== 9) continue
      expect({ where, snapshot: await calls.snapshot(target) }).toEqual({
        where,
        snapshot: await calls.snapshot(model),
      })
      model.turns.forget()
    }
  }
}

async function playNext(
  next: Call | Choice,
  where: string,
  { model, target }: { readonly model: DurableModel; readonly target: Target },
): Promise<void> {
  if (typeof next === 'function') {
    const expected = plain(await next(model))
    expect({ where, answer: plain(await next(target)) }).toEqual({ where, answer: expected })
    return
  }
  const { answer, follow } = await next.ask(target)
  const judgement = follow(model.turns)
  const sorted = (items: readonly TurnItem[]) =>
    plain(items.toSorted((one, other) => (idOf(one) < idOf(other) ? -1 : 1)))
  expect({ where, faults: judgement.faults, answer: sorted(answer) }).toEqual({
    where,
    faults: [],
    answer: sorted(judgement.answer),
  })
}
