import fc from 'fast-check'
import { afterEach, expect, it, vi } from 'vitest'
import {
  DatabaseClock,
  type DatabaseClockOptions,
} from '../../../src/stores/cached/database-clock.ts'
import { HeldClaims, type HeldClaim } from '../../../src/stores/cached/held-claims.ts'
import { cachedStore } from '../../../src/stores/cached/index.ts'
import { World, type ClaimStep, type Step, type WorldOptions } from './world.ts'

const RUNS = Number(process.env['ONCEKEY_SIM_RUNS'] ?? 1000)
const timeout = 120_000

const key = fc.nat(1)
const pick = fc.nat(50)
const text = fc.string({ maxLength: 8 })

const claimStep: fc.Arbitrary<ClaimStep> = fc.record({
  key,
  fingerprint: fc.constantFrom(0, 0, 0, 1),
  mode: fc.constantFrom('hold', 'hold', 'accept', 'take', 'find'),
  retentionMs: fc.constantFrom(2000, 4000, 30_000),
  afterExpiry: fc.constantFrom('new', 'new', 'refuse'),
  onLapse: fc.constantFrom('unknown', 'rerun'),
})

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 12, arbitrary: fc.record({ kind: fc.constant('claim'), claims: batch(claimStep) }) },
  { weight: 6, arbitrary: fc.constant({ kind: 'again' }) },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant('settle'),
      pick,
      how: fc.constantFrom('complete', 'complete', 'complete', 'release', 'doubt'),
      text,
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('settle_twice'), pick, text }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('resolve'), key, text }) },
  { weight: 1, arbitrary: fc.constantFrom({ kind: 'sweep' }, { kind: 'reap' }) },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('advance'),
      ms: fc.constantFrom(1, 200, 900, 1100, 2000, 4000, 31_000, 70_000),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('set_wall'), hours: fc.integer({ min: -2, max: 2 }) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('cache'),
      mode: fc.constantFrom('ok', 'ok', 'ok', 'slow', 'hanging', 'failing'),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('clock'),
      mode: fc.constantFrom('ok', 'ok', 'failing', 'hanging'),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('hold_fills'), held: fc.boolean() }) },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constantFrom('deliver', 'deliver', 'lose_fill'), pick }),
  },
  { weight: 1, arbitrary: fc.constant({ kind: 'lose_cache' }) },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constantFrom('resurrect', 'swap', 'corrupt'),
      pick,
      at: fc.nat(1000),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('bust'), key }) },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('discard'),
      key,
      attempt: fc.constantFrom(1, 1, 2),
    }),
  },
)

function batch<Item>(item: fc.Arbitrary<Item>): fc.Arbitrary<Item[]> {
  return fc.array(item, { minLength: 1, maxLength: 3 })
}

/** Runs random histories. Returns how many claims the cache has answered. */
async function explore(
  options: Omit<WorldOptions, 'slowness'>,
  parameters: fc.Parameters<[Step[], number]>,
): Promise<number> {
  let hits = 0
  const history = fc.array(step, { minLength: 20, maxLength: 90, size: 'max' })
  const slowness = fc.constantFrom(1, 1.0005, 0.9995)
  const property = fc.asyncProperty(history, slowness, async (steps, slow) => {
    const world = new World({ ...options, slowness: slow })
    for (const one of steps) await world.run(one)
    hits += world.hits
  })
  await fc.assert(property, parameters)
  return hits
}

it(
  'a cached store answers like the bare store in random histories with faults',
  { timeout },
  async () => {
    const hits = await explore({ cachedStore }, { numRuns: RUNS })
    // Proves that the cache was used. Usually there are 900 to 1,300 hits for 1,000 histories.
    expect(hits).toBeGreaterThan(RUNS / 2)
  },
)

// Checks of the check: with a planted bug, the histories above must find a difference.

const CACHED = '../../../src/stores/cached'

afterEach(() => {
  vi.doUnmock('node:crypto')
  for (const file of ['serving', 'held-claims', 'database-clock'])
    vi.doUnmock(`${CACHED}/${file}.ts`)
  vi.resetModules()
})

async function withPart(module: string, part: object): Promise<typeof cachedStore> {
  vi.resetModules()
  vi.doMock(module, async (original) => ({ ...(await original<object>()), ...part }))
  return (await import(`${CACHED}/store.ts`)).cachedStore
}

/** Some bugs need a rare history, so this tries many, up to the first that shows the bug. */
async function expectToBeCaught(options: Omit<WorldOptions, 'slowness'>): Promise<void> {
  const explored = explore(options, { numRuns: 100 * RUNS, endOnFailure: true })
  const error: unknown = await explored.catch((thrown: unknown) => thrown)
  expect(String((error as Error).cause)).toContain('answers differently')
}

it.each([
  ['does not compare fingerprints', { isSameRequest: () => true }],
  ['ignores the expiry', { isStillKept: () => true }],
])('the random histories detect a store that %s', { timeout }, async (_, part) => {
  await expectToBeCaught({ cachedStore: await withPart(`${CACHED}/serving.ts`, part) })
})

it(
  'the random histories detect a store that caches the result of a repeated settlement',
  { timeout },
  async () => {
    class Forgetful extends HeldClaims {
      readonly #claims = new Map<string, HeldClaim>()

      override use(token: string): HeldClaim | undefined {
        const claim = super.use(token) ?? this.#claims.get(token)
        if (claim !== undefined) this.#claims.set(token, claim)
        return claim
      }

      override wasUsedOnce(): boolean {
        return true
      }
    }
    const part = { HeldClaims: Forgetful }
    await expectToBeCaught({ cachedStore: await withPart(`${CACHED}/held-claims.ts`, part) })
  },
)

it(
  'the random histories detect a store that uses the clock of its process',
  { timeout },
  async () => {
    class OwnClock extends DatabaseClock {
      constructor(options: DatabaseClockOptions) {
        super({ ...options, now: undefined })
      }
    }
    const part = { DatabaseClock: OwnClock }
    await expectToBeCaught({ cachedStore: await withPart(`${CACHED}/database-clock.ts`, part) })
  },
)

it('the random histories detect a store that accepts damaged bytes', { timeout }, async () => {
  const part = { hash: () => Buffer.alloc(32) }
  await expectToBeCaught({ cachedStore: await withPart('node:crypto', part) })
})

it(
  'the random histories detect a discard that leaves the reply in the cache',
  { timeout },
  async () => {
    const forgetful: typeof cachedStore = (options) => {
      const discard = options.durable.discard!.bind(options.durable)
      return Object.assign(cachedStore(options), { discard })
    }
    await expectToBeCaught({ cachedStore: forgetful })
  },
)

it('the random histories detect a cache without tombstones', { timeout }, async () => {
  await expectToBeCaught({ cachedStore, hasTombstones: false })
})
