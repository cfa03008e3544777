import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../../src/core/errors.ts'
import {
  DEFAULT_POLICY,
  resolvePolicy,
  type PolicyOptions,
} from '../../../src/core/engine/policy.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { engineFixture } from './engine-fixture.ts'

const HOUR_MS = 3_600_000

function create(options: Record<string, unknown>) {
  const clock = new FakeClock()
  const given = { store: memoryStore({ clock }), clock, ...options } as unknown as EngineOptions
  return { clock, engine: createEngine(given) }
}

describe('the defaults', () => {
  it('the default policy has the published values', () => {
    expect(DEFAULT_POLICY).toEqual({
      leaseMs: 60_000,
      retentionMs: 24 * HOUR_MS,
      runTimeoutMs: 15 * 60_000,
      maxLapses: 5,
      onLapse: 'unknown',
      onError: 'auto',
      afterExpiry: 'new',
      refuseForMs: undefined,
      idsFrom: 'identity',
      whileInProgress: 'conflict',
      settleTimeoutMs: 5_000,
    })
    expect(create({}).engine.policy({})).toEqual(DEFAULT_POLICY)
  })

  it('the defaults start a sweep every minute and a reap every hour', () => {
    expect(create({}).clock.pendingTimers).toBe(2)
    expect(create({ sweepEveryMs: 0 }).clock.pendingTimers).toBe(1)
    expect(create({ sweepEveryMs: 0, reapEveryMs: 0 }).clock.pendingTimers).toBe(0)
  })
})

const HUGE = Number.MAX_SAFE_INTEGER
const NOT_WHOLE: readonly unknown[] = [null, '1000', 1.5, Number.NaN, -1, Infinity, HUGE, {}, true]

describe('a wrong value', () => {
  it.each([
    ['leaseMs', [...NOT_WHOLE, 0, 99]],
    ['retentionMs', [...NOT_WHOLE, 0]],
    ['runTimeoutMs', [...NOT_WHOLE, 0]],
    ['maxLapses', [...NOT_WHOLE, 0]],
    ['settleTimeoutMs', [...NOT_WHOLE, 0]],
    ['onLapse', [null, 'retry', '', 'Unknown', 0, {}]],
    ['onError', [null, 'resume', '', 0, {}, []]],
    ['afterExpiry', [null, 'never', true, 0, {}, { refuseForMs: 0 }, { refuseForMs: '1' }]],
    ['afterExpiry', [{ refuseForMs: HUGE }, { refuseForMs: 1, more: 1 }, { refuse: 1 }]],
    ['idsFrom', [null, 'key', '', 0, {}]],
    ['whileInProgress', [null, 'wait', 5_000, [], {}, { waitMs: 0 }, { waitMs: '1' }]],
    ['whileInProgress', [{ waitMs: 120_001 }, { waitMs: 1, more: 1 }, { wait: 1 }]],
  ])('a wrong value of %s throws for the engine and for a policy', (name, values) => {
    for (const value of values) {
      expect(() => create({ [name]: value })).toThrow(InvalidOptionsError)
      expect(() => create({ [name]: value })).toThrow(`createEngine.${name}`)
      const { engine } = create({})
      const options = { [name]: value } as PolicyOptions
      expect(() => engine.policy(options)).toThrow(InvalidOptionsError)
      expect(() => engine.policy(options)).toThrow(`policy.${name}`)
    }
  })

  it.each([
    ['storeTimeoutMs', [...NOT_WHOLE, 0]],
    ['sweepEveryMs', NOT_WHOLE],
    ['reapEveryMs', NOT_WHOLE],
    ['onEvent', [null, 'log', {}]],
    ['store', [undefined, null, 'sqlite', {}, memoryStore]],
  ])('a wrong value of %s throws, and the error names the option', (name, values) => {
    for (const value of values) {
      expect(() => create({ [name]: value })).toThrow(InvalidOptionsError)
      expect(() => create({ [name]: value })).toThrow(`createEngine.${name}`)
    }
  })

  it('a wrong value is named in the message', () => {
    expect(() => create({ leaseMs: 7 })).toThrow(
      'createEngine.leaseMs must be a whole number from 100 to 86400000, got 7',
    )
    expect(() => create({ onLapse: 'retry' })).toThrow(
      `createEngine.onLapse must be 'unknown' or 'rerun', got "retry"`,
    )
    expect(() => create({ whileInProgress: [] })).toThrow('got an array')
  })

  it('a wrong value in the batching of a store throws', () => {
    for (const batching of [{ rowsMax: 0 }, { flushesMax: 0 }, { rowsMax: '64' }]) {
      const store = Object.assign(memoryStore({ clock: new FakeClock() }), { batching })
      expect(() => create({ store })).toThrow(/createEngine\.store\.batching\.\w+ must be/)
    }
  })

  it('a wrong value for close, list, read or resolve throws', async () => {
    const { engine } = engineFixture()
    const wrong = (value: unknown) => value as never
    const calls = [
      () => engine.close(wrong({ graceMs: -1 })),
      () => engine.close(wrong({ grace: 1 })),
      () => engine.close(wrong(5_000)),
      () => engine.list({ state: 'unknown', limit: 0 }),
      () => engine.list({ state: 'unknown', limit: 10_001 }),
      () => engine.list({ state: wrong('unkown') }),
      () => engine.resolve({ recordId: 'r' }, wrong({ kind: 'complete' })),
      () => engine.resolve({ recordId: 'r' }, wrong({})),
      () => engine.resolve({ recordId: 'r' }, wrong({ kind: 'completed' })),
      () => engine.resolve({ recordId: 'r' }, wrong({ kind: 'completed', result: 'text' })),
    ]
    for (const call of calls) await expect(call()).rejects.toThrow(InvalidOptionsError)
  })
})

describe('an unknown option', () => {
  it('an unknown option throws an error that names it and lists all options', () => {
    expect(() => create({ leaseMS: 60_000 })).toThrow(InvalidOptionsError)
    expect(() => create({ leaseMS: 60_000 })).toThrow(
      /has no option "leaseMS"; did you mean "leaseMs"\? Known options: .*leaseMs.*store.*/,
    )
    const { engine } = create({})
    expect(() => engine.policy({ store: 1 } as PolicyOptions)).toThrow('no option "store"')
  })

  it('any value but an object is refused in place of options', () => {
    for (const options of [undefined, null, 5, 'x']) {
      expect(() => createEngine(options as never)).toThrow(InvalidOptionsError)
    }
  })
})

describe('options that contradict each other', () => {
  it('options that contradict each other throw with both values', () => {
    expect(() => create({ retentionMs: 60_000 })).toThrow(
      'retentionMs (60000) must exceed leaseMs (60000)',
    )
    const { engine } = create({ retentionMs: 2 * HOUR_MS })
    expect(() => engine.policy({ leaseMs: 2 * HOUR_MS })).toThrow(
      'retentionMs (7200000) must exceed leaseMs (7200000)',
    )
  })
})

describe('a policy', () => {
  it('a policy takes missing options from the engine', () => {
    const onError = () => 'unknown' as const
    const { engine } = create({ leaseMs: 5_000, onError, whileInProgress: { waitMs: 50 } })
    const policy = engine.policy({ onLapse: 'rerun' })
    expect(policy).toEqual({
      ...DEFAULT_POLICY,
      leaseMs: 5_000,
      onError,
      whileInProgress: { waitMs: 50 },
      onLapse: 'rerun',
    })
  })

  it('a policy neither follows nor changes its options object', () => {
    const whileInProgress = { waitMs: 50 }
    const options: PolicyOptions = Object.freeze({ whileInProgress })
    const policy = resolvePolicy(options)
    whileInProgress.waitMs = 99
    expect(policy.whileInProgress).toEqual({ waitMs: 50 })
    expect(Object.isFrozen(policy)).toBe(true)
    expect(Object.isFrozen(policy.whileInProgress)).toBe(true)
  })

  it('an undefined option of a policy counts as absent', () => {
    const options = { leaseMs: undefined, onError: undefined } as unknown as PolicyOptions
    expect(resolvePolicy(options)).toEqual(DEFAULT_POLICY)
  })

  it('a retention of less than an hour causes one warning', async () => {
    const warnings: Error[] = []
    const listen = (warning: Error) => warnings.push(warning)
    process.on('warning', listen)
    resolvePolicy({ retentionMs: HOUR_MS - 1 })
    resolvePolicy({ retentionMs: HOUR_MS - 1 })
    resolvePolicy({ retentionMs: HOUR_MS })
    await new Promise((resolve) => {
      setImmediate(resolve)
    })
    process.off('warning', listen)
    expect(warnings.map(({ name }) => name)).toEqual(['OncekeyWarning'])
    expect(warnings[0]!.message).toContain(`retentionMs is ${HOUR_MS - 1}`)
  })
})
