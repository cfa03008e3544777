import type { Step, StepOutcome } from '../../core/durable-store.ts'
import { isRejected } from '../../core/errors.ts'
import type { Lease } from '../../core/store.ts'
import { storeFailed } from './failures.ts'
import type { FileAccess } from './file-access.ts'

/** One commit: large enough to pay for itself, small enough not to stall an event loop. */
const ROWS_MAX = 128
const BYTES_MAX = 8 * 1024 * 1024
/** The engine sends no more than it is told to; more than this is a flood, not a load. */
const WAITING_MAX = 10_000

export interface HeldStep {
  readonly lease: Lease
  readonly step: Step
}

interface Entry extends HeldStep {
  readonly resolve: (outcome: StepOutcome) => void
  readonly reject: (error: unknown) => void
}

/**
 * Steps that wait for the same turn share its commit. One by one, each of a few hundred operations
 * would wait for the commits of all the others before the result of its effect is on record.
 */
export class StepWriter {
  readonly #access: FileAccess
  readonly #take: (held: HeldStep, nowMs: number) => StepOutcome
  #waiting: Entry[] = []
  #isQueued = false

  /** `take` writes one step; it is called within a transaction of the store. */
  constructor(access: FileAccess, take: (held: HeldStep, nowMs: number) => StepOutcome) {
    this.#access = access
    this.#take = take
  }

  record(held: HeldStep): Promise<StepOutcome> {
    if (this.#waiting.length >= WAITING_MAX) {
      const cause = new Error(`${WAITING_MAX} steps are waiting already`)
      return Promise.reject(storeFailed('record a step', cause, 'overloaded'))
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ ...held, resolve, reject })
      this.#queue()
    })
  }

  #queue(): void {
    if (this.#isQueued || this.#waiting.length === 0) return
    this.#isQueued = true
    // Never rejects: what fails is told to those whose steps they are.
    void this.#write()
  }

  async #write(): Promise<void> {
    let batch: Entry[] = []
    try {
      const outcomes = await this.#turn((nowMs) => {
        batch = this.#next()
        // What comes from now on is for the turn after this one.
        this.#isQueued = false
        this.#queue()
        return batch.map((entry) => this.#take(entry, nowMs))
      })
      for (const [index, entry] of batch.entries()) entry.resolve(outcomes[index]!)
    } catch (error) {
      await this.#failed(batch, error)
    }
  }

  /** One of several may be at fault, and then only that one fails. */
  async #failed(batch: readonly Entry[], error: unknown): Promise<void> {
    if (batch.length === 0) {
      // No turn was to be had: the file is closed, or locked by somebody else.
      this.#isQueued = false
      for (const entry of this.#waiting.splice(0)) entry.reject(error)
      return
    }
    if (batch.length === 1 || !isRejected(error)) {
      for (const entry of batch) entry.reject(error)
      return
    }
    for (const entry of batch) {
      await this.#turn((nowMs) => this.#take(entry, nowMs)).then(entry.resolve, entry.reject)
    }
  }

  /** Also of a store that is being closed: it waits for what was given to it before. */
  #turn<Result>(body: (nowMs: number) => Result): Promise<Result> {
    const { writer, clock } = this.#access
    return writer.write('record a step', () => body(clock.nowMs()))
  }

  /** The first ones, as many as fit; at least one. */
  #next(): Entry[] {
    let bytes = 0
    const end = this.#waiting.slice(0, ROWS_MAX).findIndex((entry, index) => {
      bytes += bytesOf(entry.step)
      return index > 0 && bytes > BYTES_MAX
    })
    return this.#waiting.splice(0, end === -1 ? ROWS_MAX : end)
  }
}

function bytesOf({ operation, phase, end }: Step): number {
  const parts = [
    operation?.input,
    phase !== undefined && 'request' in phase ? phase.request : undefined,
    phase !== undefined && 'result' in phase ? phase.result : undefined,
    end?.kind === 'complete' ? end.result : undefined,
  ]
  return parts.reduce((sum, part) => sum + (part?.byteLength ?? 0), 0)
}
