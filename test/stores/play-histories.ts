import { expect } from 'vitest'
import { RECORD_STATES } from '../../src/core/record/record.ts'
import type {
  ClaimRequest,
  Lease,
  RecordView,
  Settlement,
  Store,
  Verdict,
} from '../../src/core/store/store.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { bytes, claimRequest } from '../../src/testing/store-cases/store-case.ts'
import { seededRandom } from '../process/random.ts'

const STEPS = 80
const KEYS = ['a', 'b', 'c']
const SPANS_MS = [0, 1, 50, 100, 200]
/** Sets the wall clock now and then: back by more than a lease may be ahead, or forward. */
const JUMPS_MS = [0, 0, 0, 0, 0, 0, -20_000, 20_000]
/** Empty, small, and larger than some stores keep in one piece. */
const RESULTS = [bytes(''), bytes('x'), new Uint8Array(40 * 1024).fill(7)]

/** Makes random requests, some of them with a lease or a record id that no longer exists. */
class RandomRequests {
  readonly #random: () => number
  readonly leases: Lease[] = []
  readonly requests: ClaimRequest[] = []

  constructor(seed: number) {
    this.#random = seededRandom(seed)
  }

  learn(outcomes: unknown): void {
    if (!Array.isArray(outcomes)) return
    for (const outcome of outcomes) {
      if (outcome?.kind === 'claimed') this.leases.push(outcome.lease)
    }
  }

  of<Item>(items: readonly Item[]): Item {
    return items[Math.floor(this.#random() * items.length)]!
  }

  claim(): ClaimRequest {
    // Sometimes repeats an earlier claim.
    if (this.requests.length > 0 && this.#random() < 0.15) return this.of(this.requests)
    const request = claimRequest({
      key: this.of(KEYS),
      mode: this.of(['hold', 'hold', 'accept', 'take']),
      fingerprint: this.of(['f', 'f', 'f', 'g']),
      leaseMs: this.of([1, 50, 100]),
      retentionMs: this.of([1, 100, 200]),
      onLapse: this.of(['unknown', 'rerun', 'resume']),
      maxLapses: this.of([1, 2, 5]),
      afterExpiry: this.of(['new', 'new', 'refuse']),
    })
    this.requests.push(request)
    return request
  }

  lease(): Lease {
    const { identity, token } = this.of(this.requests)
    const own = { identity, token, attempt: this.of([0, 1, 2, 3]) }
    return this.leases.length === 0 ? own : this.of([own, this.of(this.leases.slice(-4))])
  }

  settlement(): Settlement {
    const lease = this.lease()
    const errorCode = this.of([undefined, 'refused', 'timed_out'])
    const retentionMs = this.of([1, 100, 200])
    return this.of<Settlement>([
      { kind: 'complete', lease, result: this.of(RESULTS), retentionMs },
      { kind: 'release', lease, proof: this.of(['proven', 'declared']), errorCode, retentionMs },
      { kind: 'doubt', lease, errorCode, reconcileAfterMs: this.of(SPANS_MS) },
    ])
  }

  verdict(): Verdict {
    const { identity, recordId } = this.of(this.requests)
    return {
      ref: this.of<Verdict['ref']>([{ identity }, { recordId }]),
      attempt: this.of([undefined, 1, 2]),
      verdict: this.of<Verdict['verdict']>([
        { kind: 'completed', result: bytes('found') },
        { kind: 'failed_retryable' },
      ]),
      retentionMs: this.of([1, 100]),
    }
  }
}

type Step = (store: Store) => Promise<unknown>

function stepOf(random: RandomRequests, clock: FakeClock, jumps: boolean): Step {
  const some = <Item>(make: () => Item) => Array.from({ length: random.of([1, 3, 12]) }, make)
  const choice = random.of([0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 6])
  if (choice === 0 || random.requests.length === 0) {
    const requests = some(() => random.claim())
    return (store) => store.claim(requests)
  }
  if (choice === 1) {
    const settlements = some(() => random.settlement())
    return (store) => store.settle(settlements)
  }
  if (choice === 2) {
    const renewals = some(() => ({ ...random.lease(), leaseMs: random.of([1, 100]) }))
    return (store) => store.renew(renewals)
  }
  if (choice === 3) {
    const verdicts = some(() => random.verdict())
    return (store) => store.resolve(verdicts)
  }
  if (choice === 4) {
    return async (store) =>
      (await store.sweep({ limit: 100 })).toSorted((a, b) => (a.identity < b.identity ? -1 : 1))
  }
  if (choice === 5) {
    const abandoned = random.of([undefined, { result: bytes('late'), retentionMs: 100 }])
    return (store) => store.reap({ limit: 100, abandoned })
  }
  clock.advance(random.of(SPANS_MS))
  if (jumps) clock.jumpWallTime(random.of(JUMPS_MS))
  return () => Promise.resolve()
}

/** Turns a `Buffer` and a `Uint8Array` with the same bytes into the same text. */
const plain = (value: unknown) =>
  JSON.stringify(value, (_, item: unknown) => {
    const isBuffer = typeof item === 'object' && item !== null && 'type' in item && 'data' in item
    const data = isBuffer ? Uint8Array.from(item.data as number[]) : item
    return data instanceof Uint8Array ? Buffer.from(data).toString('latin1') : item
  })

export interface HistoriesOptions {
  readonly count: number
  readonly open: (clock: FakeClock) => Store | Promise<Store>
  /** Fields of a record in which the stores may differ. */
  readonly ignored?: readonly (keyof RecordView)[]
  /** Sets the wall clock now and then. @default true */
  readonly jumps?: boolean
}

/**
 * Plays random histories on a store and on the in-memory store, which uses the pure functions of
 * the core, and compares them. The histories are long enough for records to lapse, expire, be taken
 * over, replaced, abandoned and reaped.
 */
export async function playHistories({
  count,
  open,
  ignored = [],
  jumps = true,
}: HistoriesOptions): Promise<void> {
  const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
  console.info(`histories with ONCEKEY_TEST_SEED=${seed}`)
  for (let history = 0; history < count; history++) {
    const clock = new FakeClock()
    const random = new RandomRequests(seed + history)
    const model = memoryStore({ clock })
    const store = await open(clock)
    for (let n = 0; n < STEPS; n++) {
      const step = stepOf(random, clock, jumps)
      const [expected, actual] = [await step(model), await step(store)]
      expect(plain(actual), `seed ${seed + history}, step ${n}`).toBe(plain(expected))
      random.learn(expected)
    }
    await expectSameRecords({ store, model, ignored }, random.requests)
  }
}

interface Comparison {
  readonly store: Store
  readonly model: Store
  readonly ignored: readonly string[]
}

async function expectSameRecords(
  { store, model, ignored }: Comparison,
  requests: readonly ClaimRequest[],
): Promise<void> {
  const textOf = (view: RecordView | undefined) =>
    plain(view && { ...view, ...Object.fromEntries(ignored.map((name) => [name, 'ignored'])) })
  for (const { identity, recordId } of requests) {
    for (const ref of [{ identity }, { recordId }]) {
      expect(textOf(await store.read(ref))).toBe(textOf(await model.read(ref)))
    }
  }
  for (const state of RECORD_STATES) {
    const idsOf = async (listed: Store) =>
      (await listed.list({ state, limit: 100 })).map((view) => view.recordId).toSorted()
    expect(await idsOf(store)).toEqual(await idsOf(model))
  }
}
