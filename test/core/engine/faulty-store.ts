import { sleep, type Clock } from '../../../src/core/time/clock.ts'
import type { Completion, Lease, SettleOutcome, Store } from '../../../src/core/store/store.ts'

/** The outcome of one store call. */
export type Fate =
  | 'ok'
  /** Fails without writing. */
  | 'fail'
  /** Writes, and then fails. */
  | 'lose'
  /** Writes nothing, and never answers. */
  | 'hang'
  /** Writes, and never answers. */
  | 'swallow'
  /** Writes, and answers after this time. */
  | { readonly lateMs: number }
  /** Writes after this time, and never answers. */
  | { readonly swallowAfterMs: number }
  /** Fails with this error. */
  | Error

export type Call =
  | 'claim'
  | 'settle'
  | 'renew'
  | 'resolve'
  | 'sweep'
  | 'reap'
  | 'read'
  | 'list'
  | 'transaction'

/** A store that fails, hangs or delays on command, and records its calls. */
export class FaultyStore implements Store {
  readonly name = 'faulty'
  readonly #inner: Store
  readonly #clock: Clock
  readonly #next = new Map<Call, Fate[]>()
  readonly #always = new Map<Call, Fate>()
  readonly #asked = new Map<Call, unknown[]>()
  /** The writes of `transaction` calls, one entry for each commit. */
  readonly committed: string[] = []

  constructor(inner: Store, clock: Clock) {
    this.#inner = inner
    this.#clock = clock
  }

  /** The outcomes of the next calls, one each; after them the call works again. */
  next(call: Call, ...fates: Fate[]): void {
    this.#next.set(call, fates)
  }

  /** The default outcome of every call. */
  always(call: Call, fate: Fate): void {
    this.#always.set(call, fate)
  }

  /** The arguments of the calls, in order. */
  asked(call: Call): unknown[] {
    return [...(this.#asked.get(call) ?? [])]
  }

  claim: Store['claim'] = (requests) =>
    this.#meet('claim', requests, () => this.#inner.claim(requests))

  settle: Store['settle'] = (settlements) =>
    this.#meet('settle', settlements, () => this.#inner.settle(settlements))

  renew: Store['renew'] = (renewals) =>
    this.#meet('renew', renewals, () => this.#inner.renew(renewals))

  resolve: Store['resolve'] = (verdicts) =>
    this.#meet('resolve', verdicts, () => this.#inner.resolve(verdicts))

  sweep: Store['sweep'] = (request) =>
    this.#meet('sweep', request, () => this.#inner.sweep(request))

  reap: Store['reap'] = (request) => this.#meet('reap', request, () => this.#inner.reap(request))

  read: Store['read'] = (ref) => this.#meet('read', ref, () => this.#inner.read(ref))

  list: Store['list'] = (query) => this.#meet('list', query, () => this.#inner.list(query))

  /** The fault applies to the commit; the work always runs if it may. */
  async transaction(
    lease: Lease,
    work: (tx: unknown) => Completion | Promise<Completion>,
  ): Promise<SettleOutcome> {
    const rows: string[] = []
    const completion = await this.#completion(lease, (tx) => work(tx), rows)
    return this.#meet('transaction', lease, async () => {
      const [outcome] = await this.#inner.settle([{ kind: 'complete', lease, ...completion }])
      if (outcome?.kind === 'settled') this.committed.push(...rows)
      return outcome!
    })
  }

  /** As the contract requires, the work of a lease that has committed does not run again. */
  async #completion(
    { identity }: Lease,
    work: (tx: { insert: (row: string) => void }) => Completion | Promise<Completion>,
    rows: string[],
  ): Promise<Completion> {
    const record = await this.#inner.read({ identity })
    if (record?.state === 'completed') return { result: new Uint8Array(0), retentionMs: 0 }
    return work({ insert: (row) => rows.push(row) })
  }

  async #meet<Answer>(call: Call, request: unknown, act: () => Promise<Answer>): Promise<Answer> {
    this.#remember(call, request)
    const fate = this.#next.get(call)?.shift() ?? this.#always.get(call) ?? 'ok'
    if (fate instanceof Error) throw fate
    if (fate === 'fail') throw new Error(`${call} failed`)
    if (fate === 'hang') return never()
    if (typeof fate === 'object') {
      await sleep(this.#clock, 'lateMs' in fate ? fate.lateMs : fate.swallowAfterMs)
    }
    const answer = await act()
    if (fate === 'lose') throw new Error(`the answer to ${call} was lost`)
    if (fate === 'swallow' || (typeof fate === 'object' && 'swallowAfterMs' in fate)) return never()
    return answer
  }

  #remember(call: Call, request: unknown): void {
    const asked = this.#asked.get(call)
    if (asked === undefined) this.#asked.set(call, [request])
    else asked.push(request)
  }
}

function never(): Promise<never> {
  return new Promise(() => undefined)
}
