/** One simulated process. It can crash or stall; then none of its code runs. */
import type { Clock } from '../../src/core/time/clock.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import type { FakeClock } from '../../src/testing/fake-clock.ts'

export interface ProcessWorld {
  readonly clock: FakeClock
  /** One scheduling point: resolves when the scheduler selects it. */
  turn(label: string): Promise<void>
}

/**
 * Whether time has to move in small steps: a probe that starts within a long step times out before
 * the end of the step, and an open breaker would never close.
 */
export function isAnyRefusing(nodes: readonly SimProcess[]): boolean {
  return nodes.some(({ isRefusing, running }) => isRefusing && running)
}

export const NEVER = new Promise<never>(() => undefined)

export class SimProcess {
  readonly id: number
  /** Whether its breaker is open: it refuses claims until a probe is answered. */
  isRefusing = false
  /** The time of the world, with timers that run only while the process runs. */
  readonly clock: Clock
  readonly #world: ProcessWorld
  #state: 'running' | 'stalled' | 'dead' = 'running'
  #backlog: (() => void)[] = []
  readonly #mourners = new Set<() => void>()

  constructor(world: ProcessWorld, id: number) {
    this.#world = world
    this.id = id
    const { clock } = world
    this.clock = {
      nowMs: () => clock.nowMs(),
      monotonicMs: () => clock.monotonicMs(),
      after: (ms, run) => clock.after(ms, () => this.whenRunning(run)),
      soon: (run) => queueMicrotask(() => this.whenRunning(run)),
    }
  }

  /** Event listener for the engine of the process. */
  readonly onEvent = (event: EngineEvent): void => {
    if (event.kind === 'breaker_changed') this.isRefusing = event.to !== 'closed'
  }

  get alive(): boolean {
    return this.#state !== 'dead'
  }

  get running(): boolean {
    return this.#state === 'running'
  }

  /** `kill -9`: the process never runs again. Messages that it has sent may still arrive. */
  crash(): void {
    this.#state = 'dead'
    this.#backlog = []
    for (const onEnd of this.#mourners) onEnd()
  }

  /** Calls `onEnd` when the process crashes and its connections break. Returns the unsubscriber. */
  onCrash(onEnd: () => void): () => void {
    this.#mourners.add(onEnd)
    return () => this.#mourners.delete(onEnd)
  }

  /** `SIGSTOP`: time moves on without the process. */
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

  /** A scheduling point in this process. Never resolves for a crashed process. */
  async turn(label: string): Promise<void> {
    await this.#world.turn(`node ${this.id} ${label}`)
    await new Promise<void>((resolve) => this.whenRunning(resolve))
  }
}
