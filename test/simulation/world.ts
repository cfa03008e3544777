/**
 * A small world in which the real engine, coalescer and memory store run under a scheduler that
 * decides what happens next, and a clock that only moves when told. Everything random comes from
 * the plan, so a failing seed replays exactly.
 */
import type { Scheduler } from 'fast-check'
import type { Clock } from '../../src/core/clock.ts'
import { createEngine, type Engine } from '../../src/core/engine.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Lease,
  SettleOutcome,
  Settlement,
  Store,
} from '../../src/core/store.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'

/** What becomes of one store call. `lost`, `never` and `late` calls are never answered. */
export type Fate = 'ok' | 'fail_before' | 'fail_after' | 'lost' | 'never' | 'late'

export const TIMES = {
  leaseMs: 1_000,
  maxRunMs: 4_000,
  storeTimeoutMs: 200,
  settleTimeoutMs: 300,
  sweepEveryMs: 500,
  lateMs: 400,
} as const

/** A broken promise of the product, found by the world itself while it runs. */
export class Violation extends Error {}

export interface Effect {
  readonly recordId: string
  readonly attempt: number
  readonly result: string
}

export class World {
  readonly clock = new FakeClock()
  readonly store: Store = memoryStore({ clock: this.clock })
  readonly nodes: SimNode[] = []
  readonly effects: Effect[] = []
  /** Set by whatever notices first; the run stops there. */
  violation: Violation | undefined
  healed = false
  readonly #scheduler: Scheduler
  readonly #fates: readonly Fate[]
  /** The token and attempt each record was last claimed with. */
  readonly #holders = new Map<string, Lease>()
  #calls = 0
  #last: Promise<unknown> = Promise.resolve()

  constructor(scheduler: Scheduler, fates: readonly Fate[], nodeCount: number) {
    this.#scheduler = scheduler
    this.#fates = fates
    for (let id = 0; id < nodeCount; id++) this.nodes.push(new SimNode(this, id))
  }

  /** One scheduling point: it goes on when the scheduler says so. */
  async turn(label: string): Promise<void> {
    await this.#scheduler.schedule(Promise.resolve(), label)
  }

  nextFate(): Fate {
    if (this.healed || this.#fates.length === 0) return 'ok'
    return this.#fates[this.#calls++ % this.#fates.length]!
  }

  violate(message: string): void {
    this.violation ??= new Violation(message)
  }

  /** An outside effect: the thing that must not happen twice. */
  effect(recordId: string, attempt: number): string {
    const result = `${recordId}/${attempt}/${this.effects.length}`
    this.effects.push({ recordId, attempt, result })
    return result
  }

  effectsOf(recordId: string): Effect[] {
    return this.effects.filter((effect) => effect.recordId === recordId)
  }

  claim(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
    return this.alone(() => this.#claim(requests))
  }

  settle(settlements: readonly Settlement[]): Promise<SettleOutcome[]> {
    return this.alone(() => this.#settle(settlements))
  }

  /** One at a time, so that what is watched before and after a write belongs to that write. */
  alone<Answer>(write: () => Promise<Answer>): Promise<Answer> {
    const answer = this.#last.then(write)
    this.#last = answer.catch(() => undefined)
    return answer
  }

  async #claim(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
    const outcomes = await this.store.claim(requests)
    for (const outcome of outcomes) {
      if (outcome.kind === 'claimed') this.#holders.set(outcome.lease.identity, outcome.lease)
    }
    return outcomes
  }

  /** Settles, and watches that a holder which was fenced out changes nothing. */
  async #settle(settlements: readonly Settlement[]): Promise<SettleOutcome[]> {
    const outcomes: SettleOutcome[] = []
    for (const settlement of settlements) {
      const { lease } = settlement
      const holder = this.#holders.get(lease.identity)
      const anyAttempt = settlement.kind === 'release' && lease.attempt === 0
      const fenced =
        holder?.token !== lease.token || (!anyAttempt && holder.attempt !== lease.attempt)
      const before = await this.store.read({ identity: lease.identity })
      const [outcome] = await this.store.settle([settlement])
      const after = await this.store.read({ identity: lease.identity })
      if (fenced && JSON.stringify(before) !== JSON.stringify(after)) {
        this.violate(`a fenced holder changed its record by ${settlement.kind}`)
      }
      outcomes.push(outcome!)
    }
    return outcomes
  }

  /** The attempt that holds the record now, as the store sees it. */
  async currentAttempt(recordId: string): Promise<number | undefined> {
    return (await this.store.read({ recordId }))?.attempt
  }
}

/** One process: its engine, and whether it is alive, stalled or dead. */
export class SimNode {
  readonly engine: Engine
  readonly world: World
  readonly id: number
  #state: 'running' | 'stalled' | 'dead' = 'running'
  #backlog: (() => void)[] = []

  constructor(world: World, id: number) {
    this.world = world
    this.id = id
    this.engine = createEngine({
      store: faultyStore(this),
      clock: nodeClock(this),
      leaseMs: TIMES.leaseMs,
      maxRunMs: TIMES.maxRunMs,
      storeTimeoutMs: TIMES.storeTimeoutMs,
      settleTimeoutMs: TIMES.settleTimeoutMs,
      sweepEveryMs: TIMES.sweepEveryMs,
      reapEveryMs: 0,
      maxAttempts: 3,
    })
  }

  get alive(): boolean {
    return this.#state !== 'dead'
  }

  /** `kill -9`: nothing of it ever runs again; what it has sent may still arrive. */
  crash(): void {
    this.#state = 'dead'
    this.#backlog = []
  }

  /** `SIGSTOP`: time goes on without it. */
  stall(): void {
    if (this.#state === 'running') this.#state = 'stalled'
  }

  resume(): void {
    if (this.#state !== 'stalled') return
    this.#state = 'running'
    for (const run of this.#backlog.splice(0)) this.whenRunning(run)
  }

  whenRunning(run: () => void): void {
    if (this.#state === 'running') run()
    else if (this.#state === 'stalled') this.#backlog.push(run)
  }

  /** A scheduling point in this process. For a dead process there is none. */
  async turn(label: string): Promise<void> {
    await this.world.turn(`node ${this.id} ${label}`)
    await new Promise<void>((resolve) => this.whenRunning(resolve))
  }
}

const NEVER = new Promise<never>(() => undefined)

function nodeClock(node: SimNode): Clock {
  const { clock } = node.world
  return {
    nowMs: () => clock.nowMs(),
    monotonicMs: () => clock.monotonicMs(),
    after: (ms, run) => clock.after(ms, () => node.whenRunning(run)),
    soon: (run) => queueMicrotask(() => node.whenRunning(run)),
  }
}

/** The shared store as one process reaches it: over a network that the plan breaks. */
function faultyStore(node: SimNode): Store {
  const { world } = node
  const call = async <Answer>(name: string, write: () => Promise<Answer>): Promise<Answer> => {
    if (!node.alive) return NEVER
    const fate = world.nextFate()
    if (fate === 'never') return NEVER
    if (fate === 'late') {
      world.clock.after(TIMES.lateMs, () => void write())
      return NEVER
    }
    await world.turn(`node ${node.id} sends ${name}`)
    if (fate === 'fail_before') throw new Error(`${name} failed before it was written`)
    const answer = await write()
    if (fate === 'lost') return NEVER
    await node.turn(`hears of ${name}`)
    if (fate === 'fail_after') throw new Error(`${name} failed after it was written`)
    return answer
  }
  const { store } = world
  return {
    name: `node-${node.id}`,
    batching: { rowsMax: 3, flushesMax: 2 },
    claim: (requests) => call('claim', () => world.claim(requests)),
    settle: (settlements) => call('settle', () => world.settle(settlements)),
    renew: (renewals) => call('renew', () => world.alone(() => store.renew(renewals))),
    resolve: (verdicts) => call('resolve', () => world.alone(() => store.resolve(verdicts))),
    sweep: (request) => call('sweep', () => world.alone(() => store.sweep(request))),
    reap: (request) => call('reap', () => world.alone(() => store.reap(request))),
    read: (ref) => call('read', () => store.read(ref)),
    list: (query) => call('list', () => store.list(query)),
  }
}
