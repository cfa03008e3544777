/**
 * Where a process can be told to stand still, so that it can be killed exactly there. It writes
 * one line when it has got there, and goes no further.
 */
import { appendFileSync, writeSync } from 'node:fs'
import type { Store } from '../../src/core/store.ts'

export type Point =
  /** The claim is written, its answer has not come. */
  | 'claimed'
  /** In the handler, before its effect. */
  | 'entered'
  /** After the effect. In a transaction: after its row was written, before the callback returns. */
  | 'acted'
  /** The result is recorded (the transaction committed), and nobody was told. */
  | 'recorded'
  /** Over HTTP: in the middle of a reply that is too big to be stored. */
  | 'sending'

/** Three kinds of work that a crash treats differently. */
export const MODES = ['plain', 'rerun', 'transaction'] as const

export type Mode = (typeof MODES)[number]

/** Long enough for a duplicate to meet it alive on a busy machine; a crash is over this soon. */
export const LEASE_MS = 1_500

export const report = (line: unknown): void => {
  writeSync(1, `${JSON.stringify(line)}\n`)
}

/** An outside effect: it happens at once and for good, whatever becomes of the process. */
export function actOutside(effectsPath: string, line: string): void {
  appendFileSync(effectsPath, `${line}\n`)
}

export class StandStill {
  readonly #point: string

  /** @param point where to stand still; any other word: nowhere. */
  constructor(point: string) {
    this.#point = point
  }

  async at(point: Point): Promise<void> {
    if (point !== this.#point) return
    report({ at: point })
    await new Promise(() => undefined)
  }
}

/** The store, with its answers held back where the process is to stand still. */
export function standingStill(store: Store, still: StandStill): Store {
  return {
    name: store.name,
    // One call that stands still must not hold up the next key's.
    batching: { rowsMax: 1, flushesMax: 8 },
    claim: async (requests) => {
      const outcomes = await store.claim(requests)
      if (outcomes.some(({ kind }) => kind === 'claimed')) await still.at('claimed')
      return outcomes
    },
    settle: async (settlements) => {
      const outcomes = await store.settle(settlements)
      await still.at('recorded')
      return outcomes
    },
    transaction: async (lease, work) => {
      const outcome = await store.transaction!(lease, work)
      await still.at('recorded')
      return outcome
    },
    renew: (renewals) => store.renew(renewals),
    resolve: (verdicts) => store.resolve(verdicts),
    sweep: (request) => store.sweep(request),
    reap: (request) => store.reap(request),
    read: (ref) => store.read(ref),
    list: (query) => store.list(query),
  }
}
