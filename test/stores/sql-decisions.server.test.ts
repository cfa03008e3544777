import { describe, expect, it } from 'vitest'
import { RECORD_STATES } from '../../src/core/record/record.ts'
import type { ClaimRequest, Lease, Settlement, Store, Verdict } from '../../src/core/store/store.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { bytes, claimRequest } from '../../src/testing/store-cases/store-case.ts'
import { seededRandom } from '../process/random.ts'
import { useMariadb } from './mysql/setup.ts'
import { usePostgres } from './postgres/setup.ts'
import { setupFile } from './sqlite/setup.ts'

const STEPS = 400
const KEYS = ['a', 'b', 'c', 'd', 'e']
const SPANS_MS = [0, 1, 49, 50, 51, 100, 200, 1_000]
/** No lease of 0 ms: if a lease were shortened to 0, it might lapse in the same call or later. */
const LEASES_MS = SPANS_MS.slice(1)
/** Sets the wall clock now and then: back by more than a lease may be ahead, or forward. */
const JUMPS_MS = [0, 0, 0, 0, 0, 0, -20_000, 20_000]

/** Makes random calls, many of them with a lease or an id that no longer exists. */
class RandomCalls {
  readonly #random: () => number
  readonly #clock: FakeClock
  readonly #jumpsMs: readonly number[]
  #leases: Lease[] = []
  /** Claims since the clock last moved. Repeated later, the same id could name two records. */
  #repeatable: ClaimRequest[] = []
  #requests: ClaimRequest[] = [claimRequest({ key: KEYS[0]! })]

  constructor(seed: number, clock: FakeClock, jumpsMs: readonly number[]) {
    this.#random = seededRandom(seed)
    this.#clock = clock
    this.#jumpsMs = jumpsMs
  }

  /** A call that both stores get with the same arguments. */
  next(): (store: Store) => Promise<unknown> {
    const move = this.#of(MOVES)
    switch (move) {
      case 'claim': {
        const requests = uniqueBy(
          this.#some(() => this.#claim()),
          (one) => one.identity,
        )
        return async (store) => this.#learn(await store.claim(requests))
      }
      case 'settle': {
        const settlements = this.#some(() => this.#settlement())
        return (store) => store.settle(settlements)
      }
      case 'renew': {
        const renewals = this.#some(() => ({ ...this.#lease(), leaseMs: this.#of(LEASES_MS) }))
        return (store) => store.renew(renewals)
      }
      case 'resolve': {
        const all = this.#some(() => this.#verdict())
        const verdicts = uniqueBy(all, (one) => one.identity).map((one) => one.verdict)
        return (store) => store.resolve(verdicts)
      }
      case 'sweep':
        return async (store) => new Set(await store.sweep({ limit: 100 }))
      case 'reap': {
        const late = { result: bytes('late'), retentionMs: this.#of([1, 50, 200]) }
        const abandoned = this.#of([undefined, late])
        return (store) => store.reap({ limit: 100, abandoned })
      }
      case 'time':
        this.#repeatable = []
        this.#clock.advance(this.#of(SPANS_MS))
        this.#clock.jumpWallTime(this.#of(this.#jumpsMs))
        return () => Promise.resolve()
    }
  }

  #of<Item>(items: readonly Item[]): Item {
    return items[Math.floor(this.#random() * items.length)]!
  }

  #some<Item>(make: () => Item): Item[] {
    return Array.from({ length: this.#of([1, 1, 2, 4]) }, make)
  }

  #claim(): ClaimRequest {
    if (this.#repeatable.length > 0 && this.#random() < 0.4) {
      // Sometimes in another mode, as if another caller had the token.
      const repeated = this.#of(this.#repeatable.slice(-4))
      return this.#of([repeated, repeated, { ...repeated, mode: this.#of(CLAIM_MODES) }])
    }
    const request = claimRequest({
      key: this.#of(KEYS),
      mode: this.#of(CLAIM_MODES),
      fingerprint: this.#of(['f', 'f', 'f', 'f', 'other']),
      leaseMs: this.#of([1, 50, 100]),
      retentionMs: this.#of(SPANS_MS),
      onLapse: this.#of(['unknown', 'rerun', 'resume']),
      maxLapses: this.#of([1, 2, 5]),
      afterExpiry: this.#of(['new', 'new', 'refuse']),
    })
    this.#repeatable.push(request)
    this.#requests = [...this.#requests.slice(-20), request]
    return request
  }

  #learn(outcomes: Awaited<ReturnType<Store['claim']>>) {
    for (const one of outcomes) {
      if (one.kind === 'claimed') this.#leases = [...this.#leases.slice(-5), one.lease]
    }
    return outcomes
  }

  #lease(): Lease {
    if (this.#leases.length > 0 && this.#random() < 0.7) {
      const lease = this.#of(this.#leases)
      return this.#random() < 0.8 ? lease : { ...lease, attempt: this.#of([0, 1, 2]) }
    }
    // Includes claims that did not win: their settlements must be refused in the same way.
    const { identity, token } = this.#of(this.#requests)
    return { identity, token, attempt: this.#of([0, 1, 2, 3]) }
  }

  #settlement(): Settlement {
    const lease = this.#lease()
    const errorCode = this.#of([undefined, 'refused', 'timed_out'])
    const retentionMs = this.#of(SPANS_MS)
    return this.#of<Settlement>([
      { kind: 'complete', lease, result: bytes(this.#of(['', 'x', 'done'])), retentionMs },
      { kind: 'release', lease, proof: this.#of(['proven', 'declared']), errorCode, retentionMs },
      { kind: 'doubt', lease, errorCode, reconcileAfterMs: this.#of(SPANS_MS) },
    ])
  }

  #verdict(): { identity: string; verdict: Verdict } {
    const { identity, recordId } = this.#of(this.#requests)
    const verdict: Verdict = {
      ref: this.#of<Verdict['ref']>([{ identity }, { recordId }, { recordId: 'no-such-id' }]),
      attempt: this.#of([undefined, 0, 1, 2]),
      verdict: this.#of<Verdict['verdict']>([
        { kind: 'completed', result: bytes(this.#of(['', 'found'])) },
        { kind: 'failed_retryable' },
      ]),
      retentionMs: this.#of(SPANS_MS),
    }
    return { identity, verdict }
  }
}

/** Keeps one item for each key: a batch may answer two requests for one key in any order. */
function uniqueBy<Item>(items: readonly Item[], keyOf: (item: Item) => string): Item[] {
  return [...new Map(items.map((item) => [keyOf(item), item])).values()]
}

const CLAIM_MODES = ['hold', 'hold', 'accept', 'take'] as const

const MOVES = [
  'claim',
  'claim',
  'claim',
  'claim',
  'settle',
  'settle',
  'settle',
  'renew',
  'resolve',
  'sweep',
  'reap',
  'time',
  'time',
] as const

/** Everything that a store returns. Lists become sets: records of the same age have any order. */
async function snapshotOf(store: Store) {
  const records = await Promise.all(
    KEYS.map(async (key) => {
      const { identity } = claimRequest({ key })
      const history = await store.history?.({ ref: { identity }, limit: 10_000 })
      const record = await store.read({ identity })
      const byId = record && (await store.read({ recordId: record.recordId }))
      return { record, byId, history }
    }),
  )
  const lists = await Promise.all(
    RECORD_STATES.map(async (state) => new Set(await store.list({ state, limit: 100 }))),
  )
  return plain({ records, lists })
}

/** Turns a `Buffer` and a `Uint8Array` with the same bytes into the same text. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return Buffer.from(value).toString()
  if (value instanceof Date || value === null || typeof value !== 'object') return value
  if (value instanceof Set) return new Set([...value].map((item) => plain(item)))
  if (Array.isArray(value)) return value.map((item) => plain(item))
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, plain(item)]))
}

type Open = (options: { clock: FakeClock; history: boolean }) => Promise<Store>

async function compare(history: boolean, open: Open) {
  const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
  console.info(`${STEPS} steps with ONCEKEY_TEST_SEED=${seed}`)
  const clock = new FakeClock()
  const model = memoryStore({ clock, history })
  const store = await open({ clock, history })
  // A history is sorted by the times of its records, so the clock must not jump.
  const calls = new RandomCalls(seed, clock, history ? [0] : JUMPS_MS)
  for (let step = 0; step < STEPS; step++) {
    const call = calls.next()
    const expected = plain(await call(model))
    expect({ step, answer: plain(await call(store)) }).toEqual({ step, answer: expected })
    if (step % 20 !== 0) continue
    const [actual, snapshot] = [await snapshotOf(store), await snapshotOf(model)]
    expect({ step, snapshot: actual }).toEqual({ step, snapshot })
  }
  expect(await snapshotOf(store)).toEqual(await snapshotOf(model))
}

const withPostgres = usePostgres()
const withMariadb = useMariadb()

const STORES = {
  postgres: async (options) => (await withPostgres()).open(options),
  mysql: async (options) => (await withMariadb()).open(options),
  sqlite: async (options) => setupFile().open(options),
} satisfies Record<string, Open>

describe.each(Object.entries(STORES))('%s', (_name, open) => {
  it.each([true, false])(
    'decides like the in-memory store in random histories (history: %s)',
    { timeout: 60_000 },
    (history) => compare(history, open),
  )
})
