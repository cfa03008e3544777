/**
 * Points at which a process can be stopped, so that a test can kill it exactly there. The process
 * writes one line when it has reached the point, and does not continue.
 */
import { appendFileSync, writeSync } from 'node:fs'
import type { Store } from '../../../src/core/store/store.ts'

export type Point =
  /** The claim is written, and its answer has not arrived. */
  | 'claimed'
  /** In the handler, before its effect. */
  | 'entered'
  /** After the effect. In a transaction: after its row was written, before the callback returns. */
  | 'acted'
  /** The result is recorded (the transaction is committed), and no reply was sent. */
  | 'recorded'
  /** Over HTTP: in the middle of a reply that is too large to be stored. */
  | 'sending'

/** Three kinds of work that a crash treats differently. */
export const MODES = ['plain', 'rerun', 'transaction'] as const

export type Mode = (typeof MODES)[number]

/** Long enough for a duplicate to find it alive on a busy machine, and short after a crash. */
export const LEASE_MS = 1_500

export const report = (line: unknown): void => {
  writeSync(1, `${JSON.stringify(line)}\n`)
}

/** An outside effect: permanent at once, even if the process crashes. */
export function actOutside(effectsPath: string, line: string): void {
  appendFileSync(effectsPath, `${line}\n`)
}

export class StopPoint {
  readonly #point: string

  /** @param point where to stop. Any other word: nowhere. */
  constructor(point: string) {
    this.#point = point
  }

  async at(point: Point): Promise<void> {
    if (point !== this.#point) return
    report({ at: point })
    await new Promise(() => undefined)
  }
}

/** Wraps a store: withholds its answers at the point where the process stops. */
export function stoppingStore(store: Store, still: StopPoint): Store {
  return {
    name: store.name,
    // A stopped call must not delay the call of the next key.
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
