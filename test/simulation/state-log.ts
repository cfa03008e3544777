import type { RunOutcome } from '../../src/core/run-outcome.ts'

interface Entry {
  readonly since: number
  readonly state: string
}

/** The state that a record must have had for an answer to be true. Others say nothing of it. */
const STATE_OF: Partial<Record<RunOutcome['kind'], string>> = {
  replayed: 'completed',
  in_progress: 'in_progress',
  pending: 'pending',
  unknown: 'unknown',
}

/**
 * Which states each record went through. A request must get an answer that was true at some moment
 * while it was under way: one from before it was sent may be older than what its client has seen.
 */
export class StateLog {
  readonly #entries = new Map<string, Entry[]>()
  #writes = 0

  /** A moment, to be asked for later. */
  get now(): number {
    return this.#writes
  }

  note(identity: string, state: string): void {
    this.#writes++
    const entries = this.#entries.get(identity) ?? []
    this.#entries.set(identity, entries)
    if (entries.at(-1)?.state !== state) entries.push({ since: this.#writes, state })
  }

  /** Says what is wrong with an answer to a request that was sent at `sentAt`. */
  judge(identity: string, kind: RunOutcome['kind'], sentAt: number): string | undefined {
    const needed = STATE_OF[kind]
    const entries = this.#entries.get(identity) ?? []
    const first = entries.findLastIndex(({ since }) => since <= sentAt)
    const states = entries.slice(Math.max(first, 0)).map(({ state }) => state)
    if (needed === undefined || states.includes(needed)) return undefined
    return `stale: answered ${kind}, and since it was asked the record was ${states.join(', ')}`
  }
}
