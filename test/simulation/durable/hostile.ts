/** A tenant that floods operations and messages, and whose effects and handlers hang. */
import { createEngine, type Engine } from '../../../src/core/engine.ts'
import { newToken } from '../../../src/core/identity.ts'
import type { RunContext } from '../../../src/core/run-context.ts'
import type { RecordView } from '../../../src/core/store.ts'
import type { Effect } from '../../../src/durable/operation-contract.ts'
import { operation, type Operation } from '../../../src/durable/operation.ts'
import { createOutbox, type Outbox } from '../../../src/durable/outbox.ts'
import type { RelayMessage } from '../../../src/durable/relay-contract.ts'
import { operationPolicy } from '../../../src/durable/worker-options.ts'
import type { DurableNode } from './node.ts'
import type { EffectKind, Payment, Receipt } from './payment.ts'
import type { Asked, Fault } from './provider.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

/** The name of the tenant, and of its customer. */
export const HOSTILE = 'flood'
/** An operation and a topic that no other tenant uses. */
export const HOG = 'hog'
export const HOOK = 'hook'

/**
 * What a call does at the end of its time limit: `obeys` ends, `late` ignores the signal and ends a
 * little later, `never` does not end.
 */
export type Hang = 'obeys' | 'late' | 'never'

/** What happens while every due operation of the others must start in time. */
export type FairStep =
  | { readonly kind: 'wait'; readonly ms: number }
  /** Another tenant sends a new key. */
  | { readonly kind: 'arrive'; readonly slot: number; readonly accepts: boolean }
  /** Another tenant has a receipt to be sent. */
  | { readonly kind: 'receipt'; readonly customer: number }
  | { readonly kind: 'restart'; readonly node: number }
  | { readonly kind: 'stall'; readonly node: number }
  | { readonly kind: 'resume'; readonly node: number }

export interface HostilePlan {
  /** Whether workers, relays and reconcilers have a reserve. */
  readonly hasReserve: boolean
  /** An operation of the other tenants that it floods, too. */
  readonly shared: Extract<EffectKind, 'askable' | 'both'> | undefined
  /** Whether it floods the topic of the other tenants, too. */
  readonly floodsReceipts: boolean
  /** Whether its own operation may hang outside of an effect, up to the limit of a run. */
  readonly hangsInRun: boolean
  readonly hangs: readonly Hang[]
  /** What the provider does to the others meanwhile: nothing that takes long. */
  readonly faults: readonly Fault[]
  readonly asked: readonly Asked[]
  readonly steps: readonly FairStep[]
}

/** The input of its operations. */
interface Flood extends Payment {
  /** Hangs outside of an effect. */
  readonly hangsInRun: boolean
}

/** Far more than there are places: a store that hands out the longest due first finds no others. */
const OPERATIONS_DUE = 60
const MESSAGES_READY = 40
/** Workers and relays begin only a few of them in this time, so there are always enough. */
const FLOOD_EVERY_MS = 500
const LISTED_MAX = 10_000

export class Hostile {
  readonly plan: HostilePlan
  /** It hangs no more. */
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
    // Its requests reach a node of their own, which is healthy and has no worker.
    const { store, clock } = world
    this.#engine = createEngine({ store, clock, sweepEveryMs: 0, reapEveryMs: 0 })
    this.#outbox = createOutbox({ engine: this.#engine })
    this.#operations = this.floodedOperations.map((name) =>
      operation<Flood>({ name, run: withdraw }),
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

  /** Sends as much as it takes to have more due than there are places for. */
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

  /** One call that hangs. `isShared`: it ends some time, or the operation of others is paused. */
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

  nextAsked(): Asked {
    return this.#next(this.plan.asked)
  }

  #next<Value extends string>(list: readonly Value[]): Value | 'ok' {
    return this.isOver ? 'ok' : list[this.#used++ % list.length]!
  }

  /** It sends no more, everything that hangs ends, and what has not begun is withdrawn. */
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
    // What has begun goes on elsewhere: here it would be another operation.
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

/** What is accepted here runs elsewhere, or not at all. */
const withdraw = () => ({ status: 410, body: 'withdrawn' })

export function isHostile({ tenant }: { readonly tenant: string | undefined }): boolean {
  return tenant === HOSTILE
}

/** The operation of the hostile tenant alone: it hangs, and so does the question about it. */
export function hog(node: DurableNode): Operation<Flood> {
  return operation<Flood, { charge: HogEffect }>({
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

/** The handler of its own topic. */
export async function handleHook(node: DurableNode, message: RelayMessage): Promise<undefined> {
  const { hostile } = node.world
  if (hostile?.isOver === false) await hostile.hang(node, message.signal, false)
}
