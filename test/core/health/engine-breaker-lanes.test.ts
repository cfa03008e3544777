import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import type { StoreFailedError } from '../../../src/core/errors.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { identityOf } from '../../../src/core/record/identity.ts'
import type { StoreLanes } from '../../../src/core/store/batching.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { SCOPE, bytes, heldWork, standing } from '../engine/engine-fixture.ts'

const LANES = 8
const laneOf = (identity: string) => Number.parseInt(identity.slice(0, 2), 16) % LANES

/** The n-th key of a lane. */
function keyIn(lane: number, n = 0): string {
  for (let at = 0; ; at++) {
    const key = `${n}-${at}`
    if (laneOf(identityOf(SCOPE, key)) === lane) return key
  }
}

type Fate = 'ok' | 'fail' | 'hang'

/** An engine on a store of eight lanes, each of which can fail or hang. */
function setup(options: Partial<EngineOptions> = {}, of: StoreLanes['of'] = laneOf) {
  const clock = new FakeClock()
  const records = memoryStore({ clock })
  const fates = new Map<number, Fate>()
  const asked: string[] = []
  let probes: Fate | undefined
  const meet = async <Answer>(call: string, identity: string, act: () => Promise<Answer>) => {
    const lane = laneOf(identity)
    asked.push(`${call} ${lane}`)
    const fate = call === 'renew' ? (probes ?? fates.get(lane)) : fates.get(lane)
    if (fate === 'fail') throw new Error(`lane ${lane} failed`)
    return fate === 'hang' ? new Promise<never>(() => undefined) : act()
  }
  const calls: Pick<Store, 'batching' | 'claim' | 'settle' | 'renew'> = {
    batching: { lanes: { count: LANES, of } },
    claim: (all) => meet('claim', all[0]!.identity, () => records.claim(all)),
    settle: (all) => meet('settle', all[0]!.lease.identity, () => records.settle(all)),
    renew: (all) => meet('renew', all[0]!.identity, () => records.renew(all)),
  }
  const store: Store = Object.assign(Object.create(records) as Store, { name: 'lanes' }, calls)
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    clock,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
    ...options,
  })
  let number = 0
  /** Runs a new key of a lane, and returns the outcome. */
  const run = async (lane: number): Promise<string> => {
    let key = `${number++}`
    while (laneOf(identityOf(SCOPE, key)) !== lane) key = `${number++}`
    return engine
      .run({ scope: SCOPE, key, fingerprint: 'f' }, () => bytes('x'))
      .then(
        ({ kind }) => kind,
        (error: unknown) => (error as StoreFailedError).failure,
      )
  }
  const setAll = (fate: Fate) => {
    for (let lane = 0; lane < LANES; lane++) fates.set(lane, fate)
  }
  const hangProbes = () => (probes = 'hang')
  const count = (what: string) => asked.filter((one) => one === what).length
  return { clock, engine, events, fates, run, setAll, hangProbes, count, asked }
}

const changesOf = (events: readonly EngineEvent[]) =>
  events.flatMap((event) => (event.kind === 'breaker_changed' ? [event.to] : []))

describe('a lane that fails', () => {
  it('claims of a failing lane are refused after three failures, and no others', async () => {
    const { run, fates, clock, count, engine, events } = setup()
    fates.set(3, 'fail')
    for (let n = 0; n < 3; n++) {
      expect(await run(3)).toBe('unavailable')
      expect(await run(4)).toBe('ran')
    }
    await clock.advanceAsync(0)
    const before = count('claim 3')
    expect(await run(3)).toBe('refused')
    expect(count('claim 3')).toBe(before)
    for (let lane = 0; lane < LANES; lane++) if (lane !== 3) expect(await run(lane)).toBe('ran')
    expect(await engine.health()).toMatchObject({
      status: 'degraded',
      breaker: 'closed',
      store: { state: 'answering', error: expect.stringContaining('lane 3 failed') },
    })
    expect(changesOf(events)).toEqual([])
  })

  it('the refusal of a lane has a retry time, and names the part of the store', async () => {
    const { fates, engine, clock, run } = setup()
    fates.set(3, 'fail')
    for (let n = 0; n < 3; n++) await run(3)
    await clock.advanceAsync(0)
    const request = { scope: SCOPE, key: keyIn(3, 9), fingerprint: 'f' }
    await expect(engine.run(request, () => bytes('x'))).rejects.toMatchObject({
      failure: 'refused',
      retryAfterMs: expect.toSatisfy((ms: number) => ms > 0 && ms <= 2_500),
      message: expect.stringContaining('this part of the store has failed'),
    })
  })

  it('a refused lane is probed automatically, and served again once it answers', async () => {
    const { run, fates, clock, count, engine } = setup()
    fates.set(3, 'fail')
    for (let n = 0; n < 3; n++) await run(3)
    await clock.advanceAsync(10_000)
    expect(count('renew 3')).toBeGreaterThanOrEqual(4)
    fates.set(3, 'ok')
    await clock.advanceAsync(5_000)
    expect(await run(3)).toBe('ran')
    expect(await engine.health()).toMatchObject({ status: 'ready', store: { error: undefined } })
    const probes = count('renew 3')
    await clock.advanceAsync(60_000)
    expect(count('renew 3')).toBe(probes)
  })

  // Lanes 0 to 2 are on one server, which falls silent under load; the others answer.
  it('lanes that fail together are refused together, after one timeout', async () => {
    const { run, fates, clock, engine } = setup()
    for (const lane of [0, 1, 2]) fates.set(lane, 'hang')
    const lost = [0, 1, 2].map((lane) => run(lane))
    const healthy = [3, 4, 5, 6, 7].map((lane) => run(lane))
    await clock.advanceAsync(0)
    expect(await Promise.all(healthy)).toEqual(Array.from({ length: 5 }, () => 'ran'))
    await clock.advanceAsync(5_000)
    expect(await Promise.all(lost)).toEqual(['unavailable', 'unavailable', 'unavailable'])
    expect(await Promise.all([0, 1, 2].map((lane) => run(lane)))).toEqual(
      Array.from({ length: 3 }, () => 'refused'),
    )
    expect((await engine.health()).status).toBe('degraded')
  })

  it('a lane is not refused after one failure because another was refused long ago', async () => {
    const { run, fates, clock } = setup()
    fates.set(3, 'fail')
    for (let n = 0; n < 3; n++) await run(3)
    await clock.advanceAsync(5_001)
    expect(await run(3)).toBe('refused')
    fates.set(5, 'fail')
    expect(await run(5)).toBe('unavailable')
    expect(await run(5)).toBe('unavailable')
    await clock.advanceAsync(0)
    fates.set(5, 'ok')
    expect(await run(5)).toBe('ran')
  })

  it('a lane is not refused because of failures of other lanes long before', async () => {
    const { run, fates, clock } = setup()
    for (const lane of [1, 2, 3]) {
      fates.set(lane, 'fail')
      expect(await run(lane)).toBe('unavailable')
      await clock.advanceAsync(5_001)
    }
    fates.clear()
    for (const lane of [1, 2, 3]) expect(await run(lane)).toBe('ran')
  })

  it('successes of other lanes never hide a failing lane', async () => {
    const { run, fates, clock } = setup({ breaker: { failures: 5 } })
    fates.set(3, 'fail')
    for (let n = 0; n < 5; n++) {
      await run(3)
      for (const lane of [0, 1, 2]) await run(lane)
    }
    await clock.advanceAsync(0)
    expect(await run(3)).toBe('refused')
  })

  it('a failing lane is reported but not refused with breaker: false', async () => {
    const { run, fates, engine } = setup({ breaker: false })
    fates.set(3, 'fail')
    for (let n = 0; n < 5; n++) expect(await run(3)).toBe('unavailable')
    expect(await engine.health()).toMatchObject({ status: 'degraded', breaker: 'off' })
  })

  it('a refused lane leaves no timer when the engine is closed', async () => {
    const { run, fates, clock, engine } = setup()
    fates.set(3, 'fail')
    for (let n = 0; n < 3; n++) await run(3)
    await clock.advanceAsync(0)
    await engine.close({ graceMs: 0 })
    await clock.advanceAsync(120_000)
    expect(clock.pendingTimers).toBe(0)
  })
})

it('renews and records in one lane while another gives no answer', async () => {
  const { engine, fates, clock, count } = setup()
  const policy = engine.policy({ leaseMs: 3_000 })
  const start = (lane: number, n = 0) => {
    const work = heldWork()
    const request = { scope: SCOPE, key: keyIn(lane, n), fingerprint: 'f', policy }
    return { ...work, running: engine.run(request, work.work).catch((error: unknown) => error) }
  }
  // More calls than a store without lanes would have.
  const stuck = Array.from({ length: 8 }, (_, n) => start(0, n))
  const healthy = start(1)
  await clock.advanceAsync(0)
  fates.set(0, 'hang')
  await clock.advanceAsync(4_000)
  expect(count('renew 0')).toBe(1)
  expect(count('renew 1')).toBeGreaterThanOrEqual(3)
  for (const { end } of [...stuck, healthy]) end()
  expect(await healthy.running).toMatchObject({ kind: 'ran' })
  expect([count('settle 1'), await standing(stuck[0]!.running)]).toEqual([1, 'pending'])
  fates.set(0, 'ok')
  await clock.advanceAsync(60_000)
  for (const { running } of stuck) expect((await running) instanceof Error).toBe(true)
})

// The four lanes that are probed first are dead, for two ways to distribute lanes over servers.
describe.each([
  ['every second lane', [0, 2, 4, 6]],
  ['all lanes but one', [0, 1, 2, 3, 4, 5, 6]],
])('a store of which %s fails', (_, dead) => {
  it.each(['fail', 'hang'] as const)('other lanes are served when lanes %s', async (fate) => {
    const { run, fates, clock, events, engine } = setup()
    for (const lane of dead) fates.set(lane, fate)
    const healthy = Array.from({ length: LANES }, (_lane, n) => n).filter((n) => !dead.includes(n))
    for (let second = 0; second < 30; second++) {
      for (const lane of dead) void run(lane)
      for (const lane of healthy) expect(await run(lane)).toBe('ran')
      await clock.advanceAsync(1_000)
    }
    for (const lane of dead) expect(await run(lane)).toBe('refused')
    expect(changesOf(events)).toEqual([])
    expect(await engine.health()).toMatchObject({ status: 'degraded', breaker: 'closed' })
  })

  it.each(['fail', 'hang'] as const)(
    'the store is ready before any request when lanes %s',
    async (fate) => {
      const { fates, clock, engine } = setup()
      for (const lane of dead) fates.set(lane, fate)
      const health = engine.health()
      await clock.advanceAsync(2_500)
      expect((await health).status).not.toBe('unready')
    },
  )
})

it('keeps the breaker closed when a claim is answered while all probes fail', async () => {
  const { run, fates, clock, events, setAll, hangProbes } = setup()
  hangProbes()
  setAll('fail')
  for (const lane of [0, 1, 2]) await run(lane)
  fates.set(7, 'ok')
  expect(await run(7)).toBe('ran')
  await clock.advanceAsync(2_500)
  expect(changesOf(events)).toEqual([])
  expect(await run(7)).toBe('ran')
})

describe('a store whose lanes all fail', () => {
  it('a store whose lanes all fail is refused as a whole, including unused lanes', async () => {
    const { run, setAll, clock, engine, events, count, asked } = setup()
    expect(await run(0)).toBe('ran')
    setAll('fail')
    for (const lane of [0, 1, 2]) await run(lane)
    await clock.advanceAsync(0)
    expect(await run(7)).toBe('refused')
    expect(count('claim 7')).toBe(0)
    expect(await engine.health()).toMatchObject({
      status: 'unready',
      store: { state: 'failing' },
    })
    expect(changesOf(events)[0]).toBe('open')

    // Lanes are then not probed individually: each is probed in turn.
    asked.length = 0
    await clock.advanceAsync(60_000)
    const probes = Array.from({ length: LANES }, (_, lane) => count(`renew ${lane}`))
    expect(Math.max(...probes) - Math.min(...probes)).toBeLessThanOrEqual(1)
  })

  it('a failing store is served within one storeTimeoutMs after any lane answers', async () => {
    const { run, setAll, fates, clock, engine, events } = setup()
    setAll('hang')
    const lost = [0, 1, 2].map((lane) => run(lane))
    await clock.advanceAsync(60_000)
    await Promise.all(lost)
    expect((await engine.health()).status).toBe('unready')
    setAll('ok')
    fates.set(5, 'fail')
    await clock.advanceAsync(5_000)
    expect(changesOf(events).at(-1)).toBe('closed')
    for (const lane of [0, 1, 2, 3, 4, 6, 7]) expect(await run(lane)).toBe('ran')
  })

  it('a store is not ready when no lane answers a probe and no call was made before', async () => {
    const { engine, setAll, clock } = setup()
    setAll('hang')
    const health = engine.health()
    await clock.advanceAsync(2_500)
    expect(await health).toMatchObject({ status: 'unready', store: { state: 'never_answered' } })
  })
})

it('health probes at most four lanes, and others each time', async () => {
  const { engine, clock, asked } = setup()
  const probed: string[][] = []
  for (let n = 0; n < 2; n++) {
    asked.length = 0
    expect((await engine.health()).status).toBe('ready')
    probed.push(asked.toSorted())
    await clock.advanceAsync(1_000)
  }
  expect(probed).toEqual([
    ['renew 0', 'renew 2', 'renew 4', 'renew 6'],
    ['renew 1', 'renew 3', 'renew 5', 'renew 7'],
  ])
})

it('health is degraded, and not unready, when the probe of one lane fails', async () => {
  const { engine, fates, run } = setup()
  fates.set(2, 'fail')
  const degraded = { status: 'degraded', store: { state: 'answering' } }
  expect(await engine.health()).toMatchObject(degraded)
  await run(2)
  expect(await engine.health()).toMatchObject(degraded)
})

it('health is ready again once a failed lane without claims answers a probe', async () => {
  const { engine, fates, run, clock } = setup()
  fates.set(3, 'fail')
  await run(3)
  expect((await engine.health()).status).toBe('degraded')
  fates.set(3, 'ok')
  await clock.advanceAsync(1_000)
  await engine.health()
  await clock.advanceAsync(0)
  expect(await engine.health()).toMatchObject({ status: 'ready', store: { error: undefined } })
})

it('the failure of all lanes is reported only for the lanes that were used first', async () => {
  const { engine, setAll, events, asked } = setup()
  setAll('fail')
  expect((await engine.health()).status).toBe('unready')
  expect(asked).toHaveLength(LANES)
  expect(events.filter(({ kind }) => kind === 'store_error')).toHaveLength(4)
})

it.each([
  ['throws', () => expect.fail('no lane')],
  ['returns lanes that do not exist', (identity: string) => LANES + Number.parseInt(identity, 16)],
  ['returns fractions', () => 0.5],
])('treats a store as one lane when its of() %s', async (_, of) => {
  const { engine, fates, run, setAll, clock } = setup({}, of)
  expect(await run(3)).toBe('ran')
  fates.set(3, 'fail')
  for (let n = 0; n < 2; n++) expect(await run(3)).toBe('unavailable')
  expect(await engine.health()).toMatchObject({ status: 'degraded', breaker: 'closed' })
  setAll('fail')
  await run(3)
  await clock.advanceAsync(0)
  expect(await run(3)).toBe('refused')
  expect((await engine.health()).breaker).not.toBe('closed')
})

it.each([
  [{ count: 0, of: laneOf }, 'createEngine.store.batching.lanes.count'],
  [{ count: 300, of: laneOf }, 'createEngine.store.batching.lanes.count'],
  [{ count: 2, flushesMax: 0, of: laneOf }, 'createEngine.store.batching.lanes.flushesMax'],
])('refuses %j as lanes', (lanes, message) => {
  const store = Object.assign(memoryStore(), { batching: { lanes } })
  expect(() => createEngine({ store })).toThrow(message)
})
