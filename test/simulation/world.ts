/**
 * A small world in which the real engine, coalescer and memory store run under a scheduler that
 * decides what happens next, and a clock that moves only on demand. All random numbers come from
 * the plan, so a failing seed replays exactly.
 *
 * The world sees every effect, every commit and every holder, which no process can. It checks each
 * write of the store and stops the run at the first violated invariant.
 */
import type { Scheduler } from 'fast-check'
import type {
  ClaimOutcome,
  ClaimRequest,
  Completion,
  Lease,
  RecordView,
  SettleOutcome,
  Settlement,
  Store,
  SweptRecord,
  Verdict,
} from '../../src/core/store/store.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import type { SimNode } from './node.ts'
import { StateLog } from './state-log.ts'

/** The fate of one store call. `lost`, `never` and `late` calls are never answered. */
export type Fate = 'ok' | 'fail_before' | 'fail_after' | 'lost' | 'never' | 'late'

export const TIMES = {
  leaseMs: 1_000,
  runTimeoutMs: 4_000,
  storeTimeoutMs: 200,
  settleTimeoutMs: 300,
  sweepEveryMs: 500,
  lateMs: 400,
  waitMs: 900,
  graceMs: 2_000,
  /** Longer than the retention of every run. */
  expiryMs: 90_000_000,
  refuseForMs: 315_000_000_000,
} as const

/** A violated guarantee of the package, found while the world runs. */
export class Violation extends Error {}

/** A permanent effect, and the reply that reports it. */
export interface Effect {
  readonly recordId: string
  readonly attempt: number
  readonly result: string
}

/** One call of `engine.run`. */
export interface Run {
  readonly id: number
  readonly node: SimNode
  /** The number of forward jumps of the wall clock when the request was sent. */
  readonly jumpsBefore: number
  work: 'not_entered' | 'running' | 'ended'
  ended: boolean
}

interface Holder {
  readonly lease: Lease
  readonly recordId: string
  readonly run: Run
}

export class World {
  readonly clock = new FakeClock()
  readonly store: Store = memoryStore({ clock: this.clock })
  readonly nodes: SimNode[] = []
  readonly runs: Run[] = []
  /** Outside effects, which must not happen twice and cannot be undone. */
  readonly effects: Effect[] = []
  /** Rows that were committed together with their key. */
  readonly rows: Effect[] = []
  readonly states = new StateLog()
  /** The first violation that a check found; the run stops there. */
  violation: Violation | undefined
  healed = false
  /** The ids of each key. */
  readonly ids = new Map<number, string>()
  forwardJumps = 0
  backwardMs = 0
  readonly #scheduler: Scheduler
  readonly #fates: readonly Fate[]
  /** The last claim of each record. */
  readonly #holders = new Map<string, Holder>()
  /** The run that has started the work of each attempt. */
  readonly #entered = new Map<string, number>()
  #calls = 0
  #last: Promise<unknown> = Promise.resolve()

  constructor(scheduler: Scheduler, fates: readonly Fate[]) {
    this.#scheduler = scheduler
    this.#fates = fates
  }

  /** One scheduling point: resolves when the scheduler selects it. */
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

  jump(ms: number): void {
    if (ms > 0) this.forwardJumps++
    else this.backwardMs -= ms
    this.clock.jumpWallTime(ms)
  }

  newRun(node: SimNode): Run {
    const id = this.runs.length
    const run: Run = {
      id,
      node,
      jumpsBefore: this.forwardJumps,
      work: 'not_entered',
      ended: false,
    }
    this.runs.push(run)
    return run
  }

  /** A result that no other run has. */
  newResult(recordId: string, attempt: number): string {
    return `${recordId}/${attempt}/${this.effects.length + this.rows.length}`
  }

  /** An outside effect, which must not happen twice. */
  effect(recordId: string, attempt: number): string {
    const result = this.newResult(recordId, attempt)
    this.effects.push({ recordId, attempt, result })
    return result
  }

  effectsOf(recordId: string): Effect[] {
    return this.effects.filter((effect) => effect.recordId === recordId)
  }

  rowsOf(recordId: string): Effect[] {
    return this.rows.filter((row) => row.recordId === recordId)
  }

  /**
   * Whether no holder of this record can act any more: its process has crashed, its work has ended,
   * or its work has not started and never will.
   */
  isOver(identity: string): boolean {
    const holder = this.#holders.get(identity)
    if (holder === undefined) return true
    const { node, work, ended } = holder.run
    return !node.alive || (ended && work !== 'running')
  }

  claim(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
    return this.alone(async () => {
      const outcomes = await this.store.claim(requests)
      for (const [index, outcome] of outcomes.entries()) {
        if (outcome.kind !== 'claimed') continue
        const { lease, recordId } = outcome
        const run = this.runs[runIdOf(requests[index]!)]!
        this.#holders.set(lease.identity, { lease, recordId, run })
      }
      for (const { identity } of requests) await this.#noteState(identity)
      return outcomes
    })
  }

  settle(settlements: readonly Settlement[]): Promise<SettleOutcome[]> {
    return this.alone(async () => {
      const outcomes: SettleOutcome[] = []
      for (const settlement of settlements) outcomes.push(await this.#settle(settlement))
      return outcomes
    })
  }

  sweep(limit: number): Promise<SweptRecord[]> {
    return this.alone(async () => {
      const swept = await this.store.sweep({ limit })
      for (const { identity } of swept) await this.#noteState(identity)
      return swept
    })
  }

  resolve(identity: string, verdict: Verdict): Promise<void> {
    return this.alone(async () => {
      await this.store.resolve([verdict])
      await this.#noteState(identity)
    })
  }

  async #noteState(identity: string): Promise<void> {
    const record = await this.store.read({ identity })
    if (record !== undefined) this.states.note(identity, record.state)
  }

  /** One caller wins a lease, and its work starts once. */
  enter(run: Run, recordId: string, attempt: number): void {
    const first = this.#entered.get(`${recordId}/${attempt}`)
    if (first !== undefined) {
      this.violate(`runs ${first} and ${run.id} both work under attempt ${attempt} of ${recordId}`)
    }
    this.#entered.set(`${recordId}/${attempt}`, run.id)
  }

  /** Runs writes one at a time, so that state before and after a write belongs to that write. */
  alone<Answer>(write: () => Promise<Answer>): Promise<Answer> {
    const answer = this.#last.then(write)
    this.#last = answer.catch(() => undefined)
    return answer
  }

  /** Settles, and checks that only the holder changes anything, and that no proof is false. */
  async #settle(settlement: Settlement): Promise<SettleOutcome> {
    const { lease } = settlement
    const { identity } = lease
    const before = await this.store.read({ identity })
    const [outcome] = await this.store.settle([settlement])
    const after = await this.store.read({ identity })
    await this.#noteState(identity)
    if (JSON.stringify(before) === JSON.stringify(after)) return outcome!

    if (!this.#holds(lease)) {
      this.violate(`a fenced holder changed its record by ${settlement.kind}`)
    }
    if (settlement.kind === 'release' && settlement.proof === 'proven') {
      this.#checkProof(this.#holders.get(identity)!)
    }
    return outcome!
  }

  #holds({ identity, token, attempt }: Lease): boolean {
    const held = this.#holders.get(identity)?.lease
    // Attempt 0: a claim whose answer was lost is released by its token alone.
    return held?.token === token && (attempt === 0 || held.attempt === attempt)
  }

  #checkProof({ recordId, lease }: Holder): void {
    const acted = this.effectsOf(recordId).some(({ attempt }) => attempt === lease.attempt)
    if (acted) this.violate(`attempt ${lease.attempt} is proven not to have acted, but it has`)
  }

  /**
   * The check of a database before it runs work in a transaction. Returns an outcome if the work
   * must not run, because its lease is lost or an earlier transaction of the lease has committed.
   */
  begin(lease: Lease): Promise<SettleOutcome | undefined> {
    return this.alone(async () => {
      const { identity } = lease
      const record = await this.store.read({ identity })
      if (record?.state === 'completed') {
        // Changes nothing: a completed record either has this lease, or refuses it.
        const trial = { kind: 'complete', lease, result: new Uint8Array(), retentionMs: 1 } as const
        return (await this.store.settle([trial]))[0]
      }
      if (this.#holds(lease)) return undefined
      return { kind: 'fenced', own: false, state: record?.state ?? 'absent' }
    })
  }

  /** Commits rows together with their key: both or neither. */
  commit(lease: Lease, completion: Completion, row: Effect): Promise<SettleOutcome> {
    return this.alone(async () => {
      const before = await this.store.read({ identity: lease.identity })
      const outcome = await this.#settle({ kind: 'complete', lease, ...completion })
      if (outcome.kind === 'fenced') return outcome
      // An earlier transaction of the same lease committed first; this one is rolled back.
      if (before?.state === 'completed') return { kind: 'fenced', own: true, state: 'completed' }
      this.rows.push(row)
      if (this.rowsOf(row.recordId).length > 1) {
        this.violate(`two transactions have committed under record ${row.recordId}`)
      }
      return outcome
    })
  }

  /** The attempt that holds the record now, according to the store. */
  async currentAttempt(recordId: string): Promise<number | undefined> {
    return (await this.store.read({ recordId }))?.attempt
  }
}

/**
 * The store does not see which run claims. Each run has a different retention, so that the world
 * can distinguish their claims.
 */
const RETENTION_MS = 86_400_000

export const retentionOf = (run: Run): number => RETENTION_MS + run.id

export const runIdOf = (request: ClaimRequest): number => request.retentionMs - RETENTION_MS

export const textOf = (record: RecordView | undefined): string | undefined =>
  record?.result === undefined ? undefined : new TextDecoder().decode(record.result)

/** Lets every promise chain run until it waits for the scheduler or the clock. */
export function flush(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve)
  })
}
