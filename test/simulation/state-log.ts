import type { RunOutcome } from '../../src/core/attempt/run-outcome.ts'

interface Entry {
  readonly since: number
  readonly state: string
}

/** The state that a record must have had for an answer to be true. Other answers imply none. */
const STATE_OF: Partial<Record<RunOutcome['kind'], string>> = {
  replayed: 'completed',
  in_progress: 'in_progress',
  pending: 'pending',
  unknown: 'unknown',
}

/**
 * The states that each record went through. A request must get an answer that was true at some
 * moment while the request ran: an older answer may contradict what its client has seen.
 */
export class StateLog {
  readonly #entries = new Map<string, Entry[]>()
  #writes = 0

  /** The current position, for a later `judge`. */
  get now(): number {
    return this.#writes
  }

  note(identity: string, state: string): void {
    this.#writes++
    const entries = this.#entries.get(identity) ?? []
    this.#entries.set(identity, entries)
    if (entries.at(-1)?.state !== state) entries.push({ since: this.#writes, state })
  }

  /** Describes what is wrong with an answer to a request that was sent at `sentAt`. */
  judge(identity: string, kind: RunOutcome['kind'], sentAt: number): string | undefined {
    const needed = STATE_OF[kind]
    const entries = this.#entries.get(identity) ?? []
    const first = entries.findLastIndex(({ since }) => since <= sentAt)
    const states = entries.slice(Math.max(first, 0)).map(({ state }) => state)
    if (needed === undefined || states.includes(needed)) return undefined
    return `stale: answered ${kind}, but since the request the record was ${states.join(', ')}`
  }
}
