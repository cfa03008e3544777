/**
 * Random histories of what `play-histories.ts` leaves out: look-ups, id seeds, refusals that end,
 * and discarded results.
 */
import { expect } from 'vitest'
import { RECORD_STATES } from '../../../src/core/record/record.ts'
import type { ClaimRequest, Lease, Settlement, Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, claimRequest } from '../../../src/testing/store-cases/store-case.ts'
import { seededRandom } from '../../process/random.ts'

const STEPS = 80
/** Steps between comparisons of the whole records. */
const VIEW_EVERY = 8
const KEYS = ['a', 'b', 'c']
const SEEDS = [undefined, '0123456789abcdef0123456789abcdef', 'ff'.repeat(16)]

type Step = (store: Store) => Promise<unknown>

class RandomSteps {
  readonly #random: () => number
  readonly #leases: Lease[] = []
  readonly requests: ClaimRequest[] = []

  constructor(seed: number) {
    this.#random = seededRandom(seed)
  }

  #of<Item>(items: readonly Item[]): Item {
    return items[Math.floor(this.#random() * items.length)]!
  }

  #claim(): ClaimRequest {
    if (this.requests.length > 0 && this.#random() < 0.15) return this.#of(this.requests)
    const request = claimRequest({
      key: this.#of(KEYS),
      mode: this.#of(['hold', 'hold', 'hold', 'find', 'find', 'accept', 'take']),
      fingerprint: this.#of(['f', 'f', 'f', 'g']),
      idSeed: this.#of(SEEDS),
      leaseMs: this.#of([1, 50, 100]),
      retentionMs: this.#of([1, 100]),
      onLapse: this.#of(['unknown', 'rerun']),
      afterExpiry: this.#of(['new', 'refuse', 'refuse']),
      refuseForMs: this.#of([undefined, 0, 60, 200]),
    })
    this.requests.push(request)
    return request
  }

  #settlement(): Settlement {
    const { identity, token } = this.#of(this.requests)
    const lease = this.#of([{ identity, token, attempt: 1 }, ...this.#leases.slice(-3)])
    const retentionMs = this.#of([1, 100])
    return this.#of<Settlement>([
      { kind: 'complete', lease, result: this.#of([bytes(''), bytes('paid')]), retentionMs },
      { kind: 'release', lease, proof: 'proven', errorCode: 'refused', retentionMs },
      { kind: 'doubt', lease, errorCode: undefined, reconcileAfterMs: 50 },
    ])
  }

  next(clock: FakeClock): Step {
    const some = <Item>(make: () => Item) => Array.from({ length: this.#of([1, 3, 12]) }, make)
    const choice = this.requests.length === 0 ? 'claim' : this.#of(CHOICES)
    switch (choice) {
      case 'claim': {
        const requests = some(() => this.#claim())
        return (store) => store.claim(requests)
      }
      case 'settle': {
        const settlements = some(() => this.#settlement())
        return (store) => store.settle(settlements)
      }
      case 'discard': {
        const { identity, recordId } = this.#of(this.requests)
        const ref = this.#of([{ identity }, { identity }, { recordId }])
        const discard = { ref, attempt: this.#of([1, 1, 2, 3]), idSeed: this.#of(SEEDS) }
        return (store) => store.discard!(discard)
      }
      case 'reap': {
        const abandoned = this.#of([undefined, { result: bytes('late'), retentionMs: 50 }])
        return (store) => store.reap({ limit: 100, abandoned })
      }
      case 'sweep':
        return async (store) => (await store.sweep({ limit: 100 })).length
      case 'wait':
        clock.advance(this.#of([0, 1, 50, 100]))
        return () => Promise.resolve()
    }
  }

  learn(outcomes: unknown): void {
    if (!Array.isArray(outcomes)) return
    for (const outcome of outcomes) {
      if (outcome?.kind === 'claimed') this.#leases.push(outcome.lease)
    }
  }
}

const CHOICES = [
  ...(['claim', 'claim', 'claim', 'settle', 'settle', 'settle'] as const),
  ...(['discard', 'reap', 'sweep', 'wait', 'wait'] as const),
]

/** A `Buffer` and a `Uint8Array` with the same bytes become the same text. */
const plain = (value: unknown) =>
  JSON.stringify(value, (_, item: unknown) => {
    const isBuffer = typeof item === 'object' && item !== null && 'type' in item && 'data' in item
    const data = isBuffer ? Uint8Array.from(item.data as number[]) : item
    return data instanceof Uint8Array ? Buffer.from(data).toString('hex') : item
  })

/**
 * Plays histories on the store and on the in-memory store, and compares them. `check` gets the
 * number of records at the end of each history.
 */
export async function playRefusals({
  count,
  open,
  check,
}: {
  readonly count: number
  readonly open: (clock: FakeClock) => Store
  readonly check: (records: number) => Promise<void>
}): Promise<void> {
  const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
  console.info(`histories with ONCEKEY_TEST_SEED=${seed}`)
  for (let history = 0; history < count; history++) {
    const clock = new FakeClock()
    const random = new RandomSteps(seed + history)
    const [model, store] = [memoryStore({ clock }), open(clock)]
    for (let n = 0; n < STEPS; n++) {
      const step = random.next(clock)
      const [expected, actual] = [await step(model), await step(store)]
      expect(plain(actual), `seed ${seed + history}, step ${n}`).toBe(plain(expected))
      random.learn(expected)
      if (n % VIEW_EVERY !== VIEW_EVERY - 1) continue
      for (const identity of new Set(random.requests.map((request) => request.identity))) {
        const view = plain(await store.read({ identity }))
        expect(view, `seed ${seed + history}, step ${n}`).toBe(
          plain(await model.read({ identity })),
        )
      }
    }
    let records = 0
    for (const state of RECORD_STATES) {
      const idsOf = async (listed: Store) =>
        (await listed.list({ state, limit: 100 })).map((view) => view.recordId).toSorted()
      expect(await idsOf(store)).toEqual(await idsOf(model))
      records += (await idsOf(model)).length
    }
    await check(records)
  }
}
