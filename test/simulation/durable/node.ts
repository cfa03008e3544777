/** One process of the service: engine, worker, relay and reconciler, on a faulty store. */
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import type { Operation } from '../../../src/durable/operations/operation.ts'
import { createOutbox } from '../../../src/durable/outbox/outbox.ts'
import {
  createReconciler,
  type Reconciler,
} from '../../../src/durable/reconciliation/reconciler.ts'
import type { Relay, RelayMessage } from '../../../src/durable/outbox/relay-contract.ts'
import { createRelay } from '../../../src/durable/outbox/relay.ts'
import { createWorker } from '../../../src/durable/operations/worker.ts'
import { SimProcess } from '../process.ts'
import { faultyStore } from './faulty-store.ts'
import { handleHook, hog, HOOK } from './hostile.ts'
import { payments, type EffectKind, type Payment } from './payment.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

/** Concurrent work per node. */
export const PLACES = { worker: 3, relay: 2, reconciler: 2 } as const

export class DurableNode extends SimProcess {
  readonly world: World
  readonly engine: Engine
  readonly operations: readonly Operation<Payment>[]
  readonly reconciler: Reconciler
  /** By message: the number of forward clock jumps when this node claimed it last. */
  readonly jumpsBefore = new Map<string, number>()
  readonly #relay: Relay
  readonly #stop = new AbortController()
  #isClosing = false

  constructor(world: World, id: number) {
    super(world, id)
    this.world = world
    const store = faultyStore(this)
    this.engine = createEngine({
      store,
      clock: this.clock,
      leaseMs: TIMES.leaseMs,
      runTimeoutMs: TIMES.runTimeoutMs,
      storeTimeoutMs: TIMES.storeTimeoutMs,
      settleTimeoutMs: TIMES.settleTimeoutMs,
      sweepEveryMs: TIMES.sweepEveryMs,
      reapEveryMs: 0,
      maxLapses: 4,
      onEvent: this.onEvent,
    })
    const { engine } = this
    const outbox = createOutbox({ engine })
    this.operations = payments(this, () => outbox)
    const operations = [...this.operations, hog(this)]
    const worker = createWorker({
      engine,
      operations,
      concurrency: PLACES.worker,
      pollMs: TIMES.workerPollMs,
      ...this.#reserve,
    })
    this.#relay = this.#createRelay()
    this.reconciler = createReconciler({
      engine,
      operations,
      schedule: { firstMs: 1_000, maxMs: 4_000, maxAttempts: 5 },
      timeoutMs: TIMES.answerMs,
      concurrency: PLACES.reconciler,
      pollMs: TIMES.reconcilerPollMs,
      ...this.#reserve,
    })
    const { signal } = this.#stop
    this.#keep('worker', worker.run(signal))
    this.#keep('relay', this.#relay.run(signal))
    this.#keep('reconciler', this.reconciler.run(signal))
  }

  /** Undefined selects the default of the package. */
  get #reserve(): { reserve?: number } {
    const { hostile, sabotage } = this.world
    const hasReserve = hostile?.plan.hasReserve !== false && sabotage.hasNoReserve !== true
    return hasReserve ? {} : { reserve: 0 }
  }

  #createRelay(): Relay {
    const { engine } = this
    return createRelay({
      engine,
      topics: {
        receipt: (message: RelayMessage) => this.#handle(message),
        [HOOK]: (message: RelayMessage) => handleHook(this, message),
      },
      concurrency: PLACES.relay,
      ...this.#reserve,
      batchSize: 3,
      leaseMs: TIMES.leaseMs,
      pollMs: TIMES.relayPollMs,
      maxAttempts: 4,
      backoff: { firstMs: 100, maxMs: 400 },
      handlerTimeoutMs: TIMES.handlerMs,
    })
  }

  async #handle(message: RelayMessage) {
    const { mailer, sabotage } = this.world
    const handled = mailer.handle(this, message)
    if (sabotage.endsEarly !== true) return handled
    void handled.catch(() => undefined)
    return undefined
  }

  #keep(what: string, running: Promise<void>): void {
    running.catch((error: unknown) => {
      this.world.violate(`the ${what} of node ${this.id} failed: ${String(error)}`)
    })
  }

  operationOf(kind: EffectKind): Operation<Payment> {
    return this.operations.find(({ name }) => name === `pay.${kind}`)!
  }

  /** Whether the node accepts work now and later. */
  get serves(): boolean {
    return this.alive && !this.#isClosing
  }

  /** Whether the node is closing and has not ended yet. */
  get isClosing(): boolean {
    return this.alive && this.#isClosing
  }

  /** Resolves with an outside answer when the process is scheduled. */
  async hear<Answer>(what: string, answer: Promise<Answer>): Promise<Answer> {
    try {
      return await answer
    } finally {
      await this.turn(`hears ${what}`)
    }
  }

  /** A deployment: everything is closed in order, and then the process ends. */
  close(): void {
    if (this.#isClosing) return
    this.#isClosing = true
    this.whenRunning(() => void this.#close())
  }

  async #close(): Promise<void> {
    const { graceMs } = TIMES
    this.#stop.abort()
    await this.#relay.close({ graceMs })
    await this.engine.close({ graceMs })
    this.crash()
  }
}
