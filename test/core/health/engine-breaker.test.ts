import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { RunRequest } from '../../../src/core/engine/engine-contract.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import { identityOf } from '../../../src/core/record/identity.ts'
import type { Settlement } from '../../../src/core/store/store.ts'
import {
  SCOPE,
  bytes,
  engineFixture,
  heldWork,
  standing,
  type EngineFixture,
} from '../engine/engine-fixture.ts'

const never = () => expect.fail('the work must not run')

function failureOf({ run }: EngineFixture, changes: Partial<RunRequest> = {}) {
  return run(never, changes).then(
    () => expect.fail('expected the claim to be refused'),
    (error: unknown) => error as StoreFailedError,
  )
}

/** Three claim calls that fail at once. The store answers no probe either. */
async function opened(options: Parameters<typeof engineFixture>[0] = {}) {
  const fixture = engineFixture(options)
  fixture.store.always('claim', 'fail')
  fixture.store.always('renew', 'fail')
  for (let n = 0; n < 3; n++) await failureOf(fixture)
  await fixture.clock.advanceAsync(0)
  return fixture
}

const breakerOf = async ({ engine }: EngineFixture) => (await engine.health()).breaker
const changesOf = ({ events }: EngineFixture) =>
  events.flatMap((event) => (event.kind === 'breaker_changed' ? [event.to] : []))

describe('claims', () => {
  it('claims are refused at once after three calls that were unavailable', async () => {
    const fixture = await opened()
    expect(await breakerOf(fixture)).toBe('open')
    const asked = fixture.store.asked('claim').length
    const error = await failureOf(fixture)
    expect(error).toMatchObject({ code: 'STORE_FAILED', failure: 'refused' })
    expect(error.retryAfterMs).toBeGreaterThan(0)
    expect(error.retryAfterMs).toBeLessThanOrEqual(2_500)
    expect(fixture.store.asked('claim')).toHaveLength(asked)
    expect(fixture.events.at(-1)).toEqual({
      kind: 'claim_refused',
      tenant: 'acme',
      operation: 'pay',
      reason: 'breaker_open',
    })
  })

  it('refused claims are not released as lost, because they were never sent', async () => {
    const fixture = await opened()
    await failureOf(fixture, { key: 'refused' })
    await failureOf(fixture, { key: 'sent', ignoresBreaker: true })
    await fixture.clock.advanceAsync(1_000)
    const settlements = fixture.store.asked('settle').flat() as Settlement[]
    const released = settlements.map(({ lease }) => lease.identity)
    expect(released).toContain(identityOf(SCOPE, 'sent'))
    expect(released).not.toContain(identityOf(SCOPE, 'refused'))
  })

  // Four calls of 64 rows are in progress when the store falls silent; the others wait.
  it('claims that wait to be sent are refused as soon as the breaker opens', async () => {
    const fixture = engineFixture()
    fixture.store.always('claim', 'hang')
    fixture.store.always('renew', 'hang')
    let refused = 0
    const runs = Array.from({ length: 1_000 }, async (_, n) => {
      const { failure } = await failureOf(fixture, { key: `${n}` })
      if (failure === 'refused') refused++
    })
    await fixture.clock.advanceAsync(5_000)
    // The first two failed calls were followed by two more.
    expect(refused).toBe(1_000 - 6 * 64)
    await fixture.clock.advanceAsync(5_000)
    await Promise.all(runs)
    expect(fixture.store.asked('claim')).toHaveLength(6)
  })

  it('claims whose caller would run unprotected are sent while the breaker is open', async () => {
    const fixture = await opened()
    const error = await failureOf(fixture, { ignoresBreaker: true })
    expect(error.failure).toBe('unavailable')
    fixture.store.always('claim', 'ok')
    const outcome = await fixture.run(() => bytes('x'), { ignoresBreaker: true, key: 'free' })
    expect(outcome.kind).toBe('ran')
    expect(await breakerOf(fixture)).toBe('closed')
  })

  // Four calls are in progress; two claims of one key wait, and would share a row.
  it('a claim is sent alone when the claim that it shares a row with is refused', async () => {
    const fixture = engineFixture({ breaker: { failures: 1 } })
    fixture.store.always('renew', 'fail')
    fixture.store.next('claim', ...Array.from({ length: 4 }, () => 'hang' as const))
    // Each call is full, so that the next claims wait.
    for (let n = 0; n < 4 * 64; n++) void failureOf(fixture, { key: `${n}` })
    await fixture.clock.advanceAsync(0)
    fixture.store.always('claim', 'fail')
    const plain = failureOf(fixture)
    const ignoring = failureOf(fixture, { ignoresBreaker: true })
    await fixture.clock.advanceAsync(6_000)
    expect([(await plain).failure, (await ignoring).failure]).toEqual(['refused', 'unavailable'])
  })

  it.each(['rejected', 'overloaded'] as const)(
    'claims that are %s never open the breaker, because a tenant may be the cause',
    async (failure) => {
      const fixture = engineFixture()
      const cause = new Error('a row at fault')
      const error = new StoreFailedError({ store: 'x', operation: 'claim', failure, cause })
      fixture.store.always('claim', error)
      for (let n = 0; n < 10; n++) await failureOf(fixture)
      expect(await breakerOf(fixture)).toBe('closed')
    },
  )

  it('claims are never refused with breaker: false', async () => {
    const fixture = await opened({ breaker: false })
    expect(await breakerOf(fixture)).toBe('off')
    expect((await failureOf(fixture)).failure).toBe('unavailable')
    expect(changesOf(fixture)).toEqual([])
  })

  it('the breaker opens after the number of failures in `failures`', async () => {
    const fixture = engineFixture({ breaker: { failures: 5 } })
    fixture.store.always('claim', 'fail')
    for (let n = 0; n < 4; n++) await failureOf(fixture)
    expect(await breakerOf(fixture)).toBe('closed')
    await failureOf(fixture)
    expect(changesOf(fixture)[0]).toBe('open')
  })
})

describe('an open breaker', () => {
  it('an open breaker lets results and renewals through', async () => {
    const fixture = engineFixture()
    const { work, end } = heldWork()
    const running = fixture.run(work)
    await fixture.clock.advanceAsync(0)
    fixture.store.always('claim', 'fail')
    for (let n = 0; n < 3; n++) await failureOf(fixture, { key: `${n}` })
    expect(changesOf(fixture)).toEqual(['open'])
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
  })

  it('an open breaker closes at its first probe when the store answers it', async () => {
    const fixture = engineFixture()
    fixture.store.next('claim', 'fail', 'fail', 'fail')
    for (let n = 0; n < 3; n++) await failureOf(fixture)
    await fixture.clock.advanceAsync(0)
    expect(changesOf(fixture)).toEqual(['open', 'half_open', 'closed'])
    expect(await fixture.run(() => bytes('x'))).toMatchObject({ kind: 'ran' })
  })

  it('an open breaker probes with growing pauses below half of storeTimeoutMs', async () => {
    const fixture = await opened()
    const probes = () => fixture.store.asked('renew').length
    expect(probes()).toBe(1)
    await fixture.clock.advanceAsync(1_000)
    expect(probes()).toBe(2)
    const before = probes()
    await fixture.clock.advanceAsync(60_000)
    expect(probes() - before).toBeGreaterThanOrEqual(24)
    expect(probes() - before).toBeLessThanOrEqual(50)
  })

  it('an open breaker closes within one storeTimeoutMs after the store is back', async () => {
    const fixture = await opened()
    fixture.store.always('renew', 'hang')
    await fixture.clock.advanceAsync(600_000)
    fixture.store.always('renew', 'ok')
    fixture.store.always('claim', 'ok')
    await fixture.clock.advanceAsync(5_000)
    expect(await fixture.run(() => bytes('x'))).toMatchObject({ kind: 'ran' })
  })

  it('an open breaker stays open for longer when probes succeed and claims do not', async () => {
    const fixture = engineFixture()
    fixture.store.always('claim', 'fail')
    for (let n = 0; n < 3; n++) await failureOf(fixture)
    await fixture.clock.advanceAsync(0)
    expect(await breakerOf(fixture)).toBe('closed')
    expect((await failureOf(fixture)).failure).toBe('unavailable')
    await fixture.clock.advanceAsync(400)
    expect((await failureOf(fixture)).failure).toBe('refused')
  })

  it('an open breaker answers a waiting duplicate at once', async () => {
    const fixture = engineFixture()
    const policy = fixture.engine.policy({ whileInProgress: { waitMs: 60_000 } })
    const { work, end } = heldWork()
    const first = fixture.run(work)
    await fixture.clock.advanceAsync(0)
    const second = failureOf(fixture, { policy })
    await fixture.clock.advanceAsync(0)
    fixture.store.always('claim', 'fail')
    fixture.store.always('renew', 'fail')
    for (let n = 0; n < 3; n++) await failureOf(fixture, { key: `${n}` })
    await fixture.clock.advanceAsync(1_000)
    expect(await second).toMatchObject({ failure: 'refused', keyInUse: true })
    end()
    expect(await first).toMatchObject({ kind: 'ran' })
  })

  it('an open breaker leaves no timer when the engine is closed', async () => {
    const fixture = await opened()
    fixture.store.always('settle', 'ok')
    await fixture.engine.close({ graceMs: 0 })
    await fixture.clock.advanceAsync(120_000)
    expect(fixture.clock.pendingTimers).toBe(0)
  })

  it('an open breaker pauses the upkeep, which continues afterwards', async () => {
    const fixture = await opened({ sweepEveryMs: 10_000 })
    await fixture.clock.advanceAsync(60_000)
    expect(fixture.store.asked('sweep')).toEqual([])
    fixture.store.always('renew', 'ok')
    await fixture.clock.advanceAsync(5_000)
    expect(fixture.store.asked('sweep').length).toBeGreaterThan(0)
    await fixture.engine.close({ graceMs: 0 })
  })

  it('an open breaker makes background work wait until it closes', async () => {
    const fixture = await opened()
    const waiting = fixture.engine.untilStoreAnswers()
    const aborted = new AbortController()
    const leaving = fixture.engine.untilStoreAnswers(aborted.signal)
    expect(await standing(waiting)).toBe('pending')
    aborted.abort()
    await leaving
    fixture.store.always('renew', 'ok')
    await fixture.clock.advanceAsync(5_000)
    await waiting
    await fixture.engine.untilStoreAnswers()
  })

  it('background work that waits for the breaker continues when the engine is closed', async () => {
    const fixture = await opened()
    const waiting = fixture.engine.untilStoreAnswers()
    await fixture.engine.close({ graceMs: 0 })
    await waiting
  })
})

describe('health', () => {
  it('health distinguishes a store that never answered from one that stopped', async () => {
    const fixture = engineFixture()
    const { engine, store, clock } = fixture
    store.always('renew', new Error('connect ECONNREFUSED\n postgres://me:secret@host/db'))
    const { status, store: standingOf } = await engine.health()
    expect([status, standingOf.state]).toEqual(['unready', 'never_answered'])
    expect(standingOf.error).toContain('connect ECONNREFUSED postgres://…@host/db')

    store.always('renew', 'ok')
    await clock.advanceAsync(1_000)
    expect(await engine.health()).toEqual({
      status: 'ready',
      breaker: 'closed',
      store: {
        name: 'faulty',
        state: 'answering',
        since: new Date(clock.nowMs()),
        error: undefined,
      },
      paused: [],
    })

    store.always('renew', 'fail')
    await clock.advanceAsync(1_000)
    expect(await engine.health()).toMatchObject({ status: 'unready', store: { state: 'failing' } })
  })

  it('health calls the store at most once a second for any number of callers', async () => {
    const { engine, store, clock } = engineFixture()
    await Promise.all([engine.health(), engine.health()])
    await engine.health()
    expect(store.asked('renew')).toHaveLength(1)
    await clock.advanceAsync(1_000)
    await engine.health()
    expect(store.asked('renew')).toHaveLength(2)
  })

  it('health answers in time when the store does not', async () => {
    const { engine, store, clock } = engineFixture()
    store.always('renew', 'hang')
    const asked = engine.health()
    await clock.advanceAsync(2_500)
    expect(await asked).toMatchObject({ status: 'unready' })
  })

  it('health is degraded after a failed claim call, and ready after a successful one', async () => {
    const fixture = engineFixture()
    fixture.store.next('claim', 'fail')
    await failureOf(fixture)
    expect(await fixture.engine.health()).toMatchObject({ status: 'degraded' })
    await fixture.run(() => bytes('x'))
    expect(await fixture.engine.health()).toMatchObject({ status: 'ready' })
  })

  it('health is closing once close() was called, and makes no further calls', async () => {
    const { engine, store } = engineFixture()
    await engine.close()
    expect(await engine.health()).toMatchObject({ status: 'closing' })
    expect(store.asked('renew')).toEqual([])
  })

  it('health uses the probe of the store if it has one', async () => {
    const { store, clock } = engineFixture()
    let probes = 0
    const probing = Object.assign(Object.create(store) as typeof store, {
      probe: async () => void probes++,
    })
    const engine = createEngine({ store: probing, clock, onEvent: () => undefined })
    expect(await engine.health()).toMatchObject({ status: 'ready' })
    expect([probes, store.asked('renew').length]).toEqual([1, 0])
    await engine.close()
  })
})

it.each([
  [true, 'createEngine.breaker must be false or an object'],
  [{ failure: 3 }, 'failure'],
  [{ failures: 0 }, 'createEngine.breaker.failures must be a whole number from 1'],
  [{ pauseMsMax: '1s' }, 'createEngine.breaker.pauseMsMax must be a whole number'],
])('refuses %j as the breaker option', (breaker, message) => {
  expect(() => engineFixture({ breaker: breaker as never })).toThrow(message)
})
