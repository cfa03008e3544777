/** A tenant that floods operations and messages, and whose effects and handlers hang. */
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import { newToken } from '../../../src/core/record/identity.ts'
import type { RunContext } from '../../../src/core/attempt/run-context.ts'
import type { RecordView } from '../../../src/core/store/store.ts'
import type { Effect } from '../../../src/durable/operations/operation-contract.ts'
import { defineOperation, type Operation } from '../../../src/durable/operations/operation.ts'
import { createOutbox, type Outbox } from '../../../src/durable/outbox/outbox.ts'
import type { RelayMessage } from '../../../src/durable/outbox/relay-contract.ts'
import { operationPolicy } from '../../../src/durable/operations/worker-options.ts'
import type { DurableNode } from './node.ts'
import type { EffectKind, Payment, Receipt } from './payment.ts'
import type { QueryFate, Fault } from './provider.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

/** The name of the tenant, and of its customer. */
export const HOSTILE = 'flood'
/** An operation and a topic that no other tenant uses. */
export const HOG = 'hog'
export const HOOK = 'hook'

/**
 * How a call reacts to its time limit: `obeys` ends, `late` ignores the signal and ends a little
 * later, `never` does not end.
 */
export type Hang = 'obeys' | 'late' | 'never'

/** Events during the phase in which every due operation of the other tenants must start in time. */
export type FairStep =
  | { readonly kind: 'wait'; readonly ms: number }
  /** Another tenant sends a new key. */
  | { readonly kind: 'arrive'; readonly slot: number; readonly accepts: boolean }
  /** Another tenant adds a receipt. */
  | { readonly kind: 'receipt'; readonly customer: number }
  | { readonly kind: 'restart'; readonly node: number }
  | { readonly kind: 'stall'; readonly node: number }
  | { readonly kind: 'resume'; readonly node: number }

export interface HostilePlan {
  /** Whether workers, relays and reconcilers have a reserve. */
  readonly hasReserve: boolean
  /** An operation of the other tenants that the hostile tenant also floods. */
  readonly shared: Extract<EffectKind, 'askable' | 'both'> | undefined
  /** Whether the hostile tenant also floods the topic of the other tenants. */
  readonly floodsReceipts: boolean
  /** Whether its operation may hang outside an effect, up to the limit of a run. */
  readonly hangsInRun: boolean
  readonly hangs: readonly Hang[]
  /** Faults of the provider for the other tenants in this phase, none of which takes long. */
  readonly faults: readonly Fault[]
  readonly asked: readonly QueryFate[]
  readonly steps: readonly FairStep[]
}

/** The input of the hostile operations. */
interface Flood extends Payment {
  /** Hangs outside an effect. */
  readonly hangsInRun: boolean
}

/** Far more than there are places: a store that returns the longest due first finds no others. */
const OPERATIONS_DUE = 60
const MESSAGES_READY = 40
/** Workers and relays start only a few of them in this time, so there are always enough. */
const FLOOD_EVERY_MS = 500
const LISTED_MAX = 10_000

export class Hostile {
  readonly plan: HostilePlan
  /** Set when its calls no longer hang. */
  isOver = false
  readonly #world: World
  readonly #engine: Engine
  readonly #outbox: Outbox
  readonly #operations: readonly Operation<Flood>[]
  readonly #over: Promise<void>
  #end: () => void = () => undefined
  #floodAtMs = 0
  #used = 0
  #keys = 0

  constructor(world: World, plan: HostilePlan) {
    this.#world = world
    this.plan = plan
    // Requests of the hostile tenant reach a separate node, which is healthy and has no worker.
    const { store, clock } = world
    this.#engine = createEngine({ store, clock, sweepEveryMs: 0, reapEveryMs: 0 })
    this.#outbox = createOutbox({ engine: this.#engine })
    this.#operations = this.floodedOperations.map((name) =>
      defineOperation<Flood>({ name, run: withdraw }),
    )
    this.#over = new Promise((resolve) => {
      this.#end = resolve
    })
  }

  get floodedOperations(): string[] {
    const { shared } = this.plan
    return [HOG, ...(shared === undefined ? [] : [`pay.${shared}`])]
  }

  get floodedTopics(): string[] {
    return [HOOK, ...(this.plan.floodsReceipts ? ['receipt'] : [])]
  }

  /** Adds work until more is due than there are places. */
  async flood(): Promise<void> {
    const { store, clock } = this.#world
    if (this.isOver || clock.monotonicMs() < this.#floodAtMs) return
    this.#floodAtMs = clock.monotonicMs() + FLOOD_EVERY_MS
    const pending = await store.list({ state: 'pending', limit: LISTED_MAX })
    for (const one of this.#operations) {
      const due = pending.filter((record) => record.operation === one.name && isHostile(record))
      for (let count = due.length; count < OPERATIONS_DUE; count++) await this.#accept(one)
    }
    const ready = await store.durable.outbox.list({ state: 'ready', limit: LISTED_MAX })
    for (const topic of this.floodedTopics) {
      const due = ready.filter((message) => message.topic === topic && isHostile(message))
      for (let count = due.length; count < MESSAGES_READY; count++) await this.#add(topic)
    }
  }

  async #accept(one: Operation<Flood>): Promise<void> {
    const scope = { tenant: HOSTILE, operation: one.name }
    const nth = this.#keys++
    const key = `f${nth}`
    const hangsInRun = this.plan.hangsInRun && nth % 2 === 0
    const policy = operationPolicy(this.#engine)
    await this.#engine.run({ scope, key, fingerprint: 'same', policy }, async (context) => {
      await one.accept(context, { customer: HOSTILE, hangsInRun })
      return new Uint8Array()
    })
  }

  async #add(topic: string): Promise<void> {
    const payload: Receipt = { recordId: `flood-${this.#keys++}`, customer: HOSTILE }
    await this.#world.store.transact(async (tx) => {
      await this.#outbox.add(tx, topic, payload, { tenant: HOSTILE })
    })
  }

  /** One call that hangs. A shared call ends eventually, or the operation would be paused. */
  async hang(node: DurableNode, signal: AbortSignal | undefined, isShared: boolean) {
    const { hangs } = this.plan
    const drawn = hangs[this.#used++ % hangs.length]!
    const how = isShared && drawn === 'never' ? 'late' : drawn
    const hung = new Promise<never>((_, reject) => {
      const end = () => reject(new Error('it hung'))
      void this.#over.then(end)
      if (how === 'never' || signal === undefined) return
      const obey = how === 'obeys' ? end : () => void node.clock.after(TIMES.hangsOnMs, end)
      if (signal.aborted) obey()
      else signal.addEventListener('abort', obey)
    })
    return node.hear('that it hung', hung)
  }

  nextFault(): Fault {
    return this.#next(this.plan.faults)
  }

  nextAsked(): QueryFate {
    return this.#next(this.plan.asked)
  }

  #next<Value extends string>(list: readonly Value[]): Value | 'ok' {
    return this.isOver ? 'ok' : list[this.#used++ % list.length]!
  }

  /** Sends nothing more, ends everything that hangs, and withdraws work that has not started. */
  async leave(): Promise<void> {
    this.isOver = true
    this.#end()
    const { store } = this.#world
    const pending = await store.list({ state: 'pending', limit: LISTED_MAX })
    for (const record of pending.filter(isHostile)) await this.#withdraw(record)
    await this.#withdrawMessages()
  }

  async #withdraw(record: RecordView): Promise<void> {
    const { phases } = this.#world.store.durable
    const one = this.#operations.find(({ name }) => name === record.operation)
    const stored = await phases.load(record.recordId)
    // Started work continues on other nodes: here it would be another operation.
    if (one === undefined || stored?.phases.length !== 0) return
    const work = async (context: RunContext) => {
      await one.resume(context)
      return new Uint8Array()
    }
    await this.#engine.resume(record, work, operationPolicy(this.#engine))
  }

  async #withdrawMessages(): Promise<void> {
    const { outbox } = this.#world.store.durable
    const ready = await outbox.list({ state: 'ready', limit: LISTED_MAX })
    const tenants = new Set(ready.map(({ tenant = '' }) => tenant))
    tenants.delete(HOSTILE)
    const token = newToken()
    const taken = await outbox.claim({
      topics: this.floodedTopics,
      withoutTenants: [...tenants],
      limit: LISTED_MAX,
      leaseMs: TIMES.leaseMs,
      token,
    })
    await outbox.settle(taken.map(({ id }) => ({ id, token, kind: 'done', providerId: undefined })))
  }
}

/** Work that is accepted here runs on other nodes, or not at all. */
const withdraw = () => ({ status: 410, body: 'withdrawn' })

export function isHostile({ tenant }: { readonly tenant: string | undefined }): boolean {
  return tenant === HOSTILE
}

/** The operation that only the hostile tenant uses. Both its effect and its query hang. */
export function hog(node: DurableNode): Operation<Flood> {
  return defineOperation<Flood, { charge: HogEffect }>({
    name: HOG,
    effects: { charge: hogEffect(node) },
    async run(op, { hangsInRun }) {
      const { hostile } = node.world
      if (hangsInRun && hostile?.isOver === false) await hostile.hang(node, undefined, false)
      await op.external('charge', {})
      return { status: 200, body: 'done' }
    },
  })
}

type HogEffect = Effect<unknown, string>

function hogEffect(node: DurableNode): HogEffect {
  const hang = async (signal: AbortSignal) => {
    const { hostile } = node.world
    if (hostile?.isOver === false) await hostile.hang(node, signal, false)
  }
  return {
    timeoutMs: TIMES.answerMs,
    send: async ({ signal }) => {
      await hang(signal)
      return 'sent'
    },
    reconcile: async ({ signal }) => {
      await hang(signal)
      return { kind: 'done', result: 'sent' }
    },
  }
}

/** The handler of the hostile topic. */
export async function handleHook(node: DurableNode, message: RelayMessage): Promise<undefined> {
  const { hostile } = node.world
  if (hostile?.isOver === false) await hostile.hang(node, message.signal, false)
}
