/** One simulated process: it can die and stand still, and then nothing of it runs. */
import type { Clock } from '../../src/core/clock.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import type { FakeClock } from '../../src/testing/fake-clock.ts'

export interface ProcessWorld {
  readonly clock: FakeClock
  /** One scheduling point: it goes on when the scheduler says so. */
  turn(label: string): Promise<void>
}

/**
 * Whether time has to go in small steps: a probe that is sent in the middle of a long one is given
 * up before its end, and a breaker that is open would never close.
 */
export function isAnyRefusing(nodes: readonly SimProcess[]): boolean {
  return nodes.some(({ isRefusing, running }) => isRefusing && running)
}

export const NEVER = new Promise<never>(() => undefined)

export class SimProcess {
  readonly id: number
  /** Its breaker is open: claims are refused there until a probe is answered. */
  isRefusing = false
  /** The world's time, with timers that fire only while the process runs. */
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

  /** For the engine of the process. */
  readonly onEvent = (event: EngineEvent): void => {
    if (event.kind === 'breaker_changed') this.isRefusing = event.to !== 'closed'
  }

  get alive(): boolean {
    return this.#state !== 'dead'
  }

  get running(): boolean {
    return this.#state === 'running'
  }

  /** `kill -9`: nothing of it ever runs again; what it has sent may still arrive. */
  crash(): void {
    this.#state = 'dead'
    this.#backlog = []
    for (const mourn of this.#mourners) mourn()
  }

  /** Its connections break with it, and others notice. Returns what ends the watch. */
  onCrash(mourn: () => void): () => void {
    this.#mourners.add(mourn)
    return () => this.#mourners.delete(mourn)
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
    await this.#world.turn(`node ${this.id} ${label}`)
    await new Promise<void>((resolve) => this.whenRunning(resolve))
  }
}
