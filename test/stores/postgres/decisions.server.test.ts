import { expect, it } from 'vitest'
import type { ClaimRequest, Lease, Settlement, Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  bytes,
  claimRequest,
  completeOf,
  doubtOf,
  LEASE_MS,
  releaseOf,
  RETENTION_MS,
} from '../../../src/testing/store-cases/store-case.ts'
import { seededRandom } from '../../process/random.ts'
import { usePostgres } from './setup.ts'

const setup = usePostgres()

const STEPS = 1_500
const KEYS = ['a', 'b', 'c', 'd']
const SEEDS = [undefined, '0123456789abcdef'.repeat(2), 'f'.repeat(32)]

/** Makes random calls on a few keys. */
class Player {
  readonly #random: () => number
  readonly #clock: FakeClock
  readonly #requests: ClaimRequest[] = []
  readonly #leases: Lease[] = []

  constructor(seed: number, clock: FakeClock) {
    this.#random = seededRandom(seed)
    this.#clock = clock
  }

  /** Returns a call that is made on both stores with the same values. */
  next(): (store: Store) => Promise<unknown> {
    const move = this.#pick(MOVES)
    switch (move) {
      case 'claim': {
        const requests = KEYS.filter(() => this.#random() < 0.5).map((key) => this.#claim(key))
        return async (store) => this.#learn(await store.claim(requests))
      }
      case 'repeat': {
        const request = this.#pick(this.#requests.slice(-6))
        return async (store) => request && this.#learn(await store.claim([request]))
      }
      case 'settle': {
        // A single settlement and a batch call different functions of the database.
        const held = this.#leases.slice(-6)
        const leases = this.#random() < 0.5 ? [this.#pick(held)] : [held.at(-1), this.#pick(held)]
        const settlements = leases.flatMap((lease) => (lease ? [this.#settlement(lease)] : []))
        return (store) => store.settle(settlements)
      }
      case 'renew': {
        const lease = this.#pick(this.#leases.slice(-6))
        return async (store) => lease && store.renew([{ ...lease, leaseMs: LEASE_MS }])
      }
      case 'resolve': {
        const { identity } = claimRequest({ key: this.#pick(KEYS)! })
        const retentionMs = this.#pick([1, RETENTION_MS])!
        const verdict = this.#pick([
          { kind: 'completed', result: bytes('found out') },
          { kind: 'failed_retryable' },
        ] as const)!
        return (store) => store.resolve([{ ref: { identity }, verdict, retentionMs }])
      }
      case 'sweep':
        return async (store) => new Set(await store.sweep({ limit: 100 }))
      case 'reap': {
        const completion = { result: bytes('too late'), retentionMs: RETENTION_MS }
        const abandoned = this.#pick([undefined, completion])
        return (store) => store.reap({ limit: 100, abandoned })
      }
      default:
        // A repeated claim arrives soon after the first; later, two records would share its id.
        this.#requests.length = 0
        this.#clock.advance(this.#pick([1, LEASE_MS / 2, LEASE_MS, RETENTION_MS])!)
        return async () => undefined
    }
  }

  #claim(key: string): ClaimRequest {
    const request = claimRequest({
      key,
      mode: this.#pick(['hold', 'hold', 'hold', 'accept', 'take', 'find'] as const)!,
      idSeed: this.#pick(SEEDS),
      fingerprint: this.#pick(['f', 'f', 'f', 'f', 'other'])!,
      onLapse: this.#pick(['unknown', 'rerun', 'resume'] as const)!,
      afterExpiry: this.#pick(['new', 'refuse'] as const)!,
      refuseForMs: this.#pick([undefined, 1, LEASE_MS, RETENTION_MS]),
      maxLapses: this.#pick([1, 2, 5])!,
      retentionMs: this.#pick([LEASE_MS, RETENTION_MS])!,
    })
    this.#requests.push(request)
    // Leases of claims that did not get the key are used too: both stores must fence them.
    const { identity, token } = request
    this.#leases.push({ identity, token, attempt: this.#pick([0, 1, 2])! })
    return request
  }

  #learn(outcomes: Awaited<ReturnType<Store['claim']>>) {
    for (const one of outcomes) if (one.kind === 'claimed') this.#leases.push(one.lease)
    return outcomes
  }

  #settlement(lease: Lease): Settlement {
    return this.#pick([
      completeOf(lease, bytes(`done ${lease.attempt}`)),
      releaseOf(lease, 'proven'),
      releaseOf(lease, 'declared'),
      doubtOf(lease, 500),
    ])!
  }

  #pick<Item>(items: readonly Item[]): Item | undefined {
    return items[Math.floor(this.#random() * items.length)]
  }
}

const MOVES = [
  'claim',
  'claim',
  'claim',
  'settle',
  'settle',
  'repeat',
  'renew',
  'resolve',
  'sweep',
  'reap',
  'time',
  'time',
] as const

it(
  'returns the same outcomes as the memory store for random calls',
  { timeout: 60_000 },
  async () => {
    const seed = Number(process.env['ONCEKEY_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
    console.info(`${STEPS} steps with ONCEKEY_TEST_SEED=${seed}`)
    const { open } = await setup()
    const clock = new FakeClock()
    const model = memoryStore({ clock, history: true })
    const store = await open({ clock, history: true })
    const player = new Player(seed, clock)
    const all = async (one: Store) =>
      Promise.all(
        KEYS.map(async (key) => {
          const { identity } = claimRequest({ key })
          const history = await one.history!({ ref: { identity }, limit: 1_000 })
          return plain({ record: await one.read({ identity }), history })
        }),
      )
    for (let step = 0; step < STEPS; step++) {
      const play = player.next()
      const expected = plain(await play(model))
      expect({ step, answer: plain(await play(store)) }).toEqual({ step, answer: expected })
      if (step % 25 !== 0) continue
      expect({ step, all: await all(store) }).toEqual({ step, all: await all(model) })
    }
    expect(await all(store)).toEqual(await all(model))
  },
)

/** Turns a `Buffer` and a `Uint8Array` of the same bytes into the same text. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return Buffer.from(value).toString()
  if (value instanceof Date || value === null || typeof value !== 'object') return value
  if (value instanceof Set) return new Set([...value].map((item) => plain(item)))
  if (Array.isArray(value)) return value.map((item) => plain(item))
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, plain(item)]))
}
