import { describe, expect, it } from 'vitest'
import { RECORD_STATES } from '../../src/core/record.ts'
import type { ClaimRequest, Lease, Settlement, Store, Verdict } from '../../src/core/store.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { bytes, claimRequest } from '../../src/testing/store-cases/store-case.ts'
import { seededRandom } from '../process/random.ts'
import { useMariadb } from './mysql-setup.ts'
import { usePostgres } from './postgres-setup.ts'
import { setupFile } from './sqlite-setup.ts'

const STEPS = 400
const KEYS = ['a', 'b', 'c', 'd', 'e']
const SPANS_MS = [0, 1, 49, 50, 51, 100, 200, 1_000]
/** No lease has no length: one that is shortened to nothing would end in the same call, or not. */
const LEASES_MS = SPANS_MS.slice(1)
/** The wall clock is set now and then, back by more than any lease may be ahead. */
const JUMPS_MS = [0, 0, 0, 0, 0, 0, -20_000, 20_000]

/** Requests made at random, many of them with a lease or an id that is long gone. */
class Chance {
  readonly #random: () => number
  readonly #clock: FakeClock
  readonly #jumpsMs: readonly number[]
  #leases: Lease[] = []
  /** Of this moment: after it, the id of an echo could stand for two records. */
  #echoes: ClaimRequest[] = []
  #requests: ClaimRequest[] = [claimRequest({ key: KEYS[0]! })]

  constructor(seed: number, clock: FakeClock, jumpsMs: readonly number[]) {
    this.#random = seededRandom(seed)
    this.#clock = clock
    this.#jumpsMs = jumpsMs
  }

  /** A call that both stores get, word for word. */
  next(): (store: Store) => Promise<unknown> {
    const move = this.#of(MOVES)
    switch (move) {
      case 'claim': {
        const requests = apart(
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
        const asked = this.#some(() => this.#verdict())
        const verdicts = apart(asked, (one) => one.identity).map((one) => one.verdict)
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
        this.#echoes = []
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
    if (this.#echoes.length > 0 && this.#random() < 0.4) {
      // Also as another caller would ask who got hold of the token.
      const echo = this.#of(this.#echoes.slice(-4))
      return this.#of([echo, echo, { ...echo, mode: this.#of(CLAIM_MODES) }])
    }
    const request = claimRequest({
      key: this.#of(KEYS),
      mode: this.#of(CLAIM_MODES),
      fingerprint: this.#of(['f', 'f', 'f', 'f', 'other']),
      leaseMs: this.#of([1, 50, 100]),
      retentionMs: this.#of(SPANS_MS),
      onLapse: this.#of(['unknown', 'rerun', 'resume']),
      maxAttempts: this.#of([1, 2, 5]),
      afterExpiry: this.#of(['new', 'new', 'refuse']),
    })
    this.#echoes.push(request)
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
    // Also of claims that won nothing: their orders must be refused alike.
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

/** One of each: in which order requests of one batch about one key are answered is open. */
function apart<Item>(items: readonly Item[], keyOf: (item: Item) => string): Item[] {
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

/** Everything that a store knows: of a list only the members, for many are as old as others. */
async function all(store: Store) {
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

/** A `Buffer` and a `Uint8Array` of the same bytes become the same text. */
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
  // A history is in the order of its records' times.
  const chance = new Chance(seed, clock, history ? [0] : JUMPS_MS)
  for (let step = 0; step < STEPS; step++) {
    const play = chance.next()
    const expected = plain(await play(model))
    expect({ step, answer: plain(await play(store)) }).toEqual({ step, answer: expected })
    if (step % 20 !== 0) continue
    expect({ step, all: await all(store) }).toEqual({ step, all: await all(model) })
  }
  expect(await all(store)).toEqual(await all(model))
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
    'decides as the core does, whatever comes (history: %s)',
    { timeout: 60_000 },
    (history) => compare(history, open),
  )
})
