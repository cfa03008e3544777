import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { createWorker } from '../../../src/durable/index.ts'
import { createOperator } from '../../../src/durable/operator/operator.ts'
import { createReconciler } from '../../../src/durable/reconciliation/reconciler.ts'
import { decodeValue } from '../../../src/durable/values.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  BY,
  bytes,
  operatorFixture,
  lostPayment,
  lostPlain,
  phasesOf,
  PROVEN_AFTER_MS,
} from '../operator/operator-fixture.ts'

const NOTHING = { looked: 0, resolved: 0, postponed: 0, givenUp: 0, moved: 0, failed: 0 }
const HOUR_MS = 3_600_000

describe('an effect whose answer was lost', () => {
  it('finds a lost effect, and its operation continues without a second send', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, pay, engine, record, heard } = fixture
    const { recordId } = await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'done', result: { id: 'ch_1', amount: 5 } })
    expect(await reconciler().runOnce()).toEqual({ ...NOTHING, looked: 1, resolved: 1 })
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    const [charge] = await phasesOf(fixture, recordId)
    expect(charge).toMatchObject({ state: 'done', providerId: 'ch_1' })
    expect(decodeValue(charge!.result)).toEqual({ id: 'ch_1', amount: 5 })
    expect(heard('effect_found')).toMatchObject([{ phase: 'charge', finding: 'done', recordId }])
    expect(heard('reconcile_resolved')).toMatchObject([{ to: 'failed_retryable', recordId }])

    const worker = createWorker({ engine, operations: [pay] })
    expect(await worker.runOnce()).toMatchObject({ completed: 1 })
    expect((await record()).state).toBe('completed')
    expect(provider.sent).toBe(1)
  })

  it('writes the verdict on a lost effect to the audit', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, audit } = fixture
    const { recordId } = await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'not_executed' })
    await reconciler().runOnce()
    const [entry, ...more] = await audit()
    expect(entry).toMatchObject({ who: 'reconciler', act: 'conclude', subject: recordId })
    expect(entry!.why).toContain('charge')
    expect(more).toEqual([])
  })

  // "Not found" proves nothing while the request may still be on its way.
  it('does not allow a second send while not_found is no proof', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, clock, record } = fixture
    const { recordId, sentAt } = await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'not_found' })
    const provenMs = sentAt.getTime() + PROVEN_AFTER_MS
    const passes = reconciler({ schedule: { firstMs: 60_000, factor: 1 } })
    while (clock.nowMs() < provenMs) {
      await passes.runOnce()
      const { state, reconcileAt } = await record()
      expect(state).toBe('unknown')
      expect((await phasesOf(fixture, recordId))[0]!.state).toBe('intended')
      await clock.advanceAsync(reconcileAt!.getTime() - clock.nowMs())
    }
    // At the time from which it is a proof, and not one pause later.
    expect(clock.nowMs()).toBe(provenMs)
    expect(await passes.runOnce()).toMatchObject({ resolved: 1 })
    expect((await record()).state).toBe('failed_retryable')
    expect(await phasesOf(fixture, recordId)).toEqual([])
    expect(fixture.heard('effect_found')).toMatchObject([{ finding: 'not_executed' }])
  })

  it('tries a lost effect at the time from which not_found is a proof', async () => {
    const fixture = operatorFixture()
    const { provider, run, record, reconciler, clock } = fixture
    provider.answer = async () => ({ kind: 'not_found' })
    await expect(run()).rejects.toThrow(/is unknown/)
    const { recordId, reconcileAt } = await record()
    const [charge] = await phasesOf(fixture, recordId)
    expect(reconcileAt!.getTime()).toBe(charge!.sentAt.getTime() + PROVEN_AFTER_MS)
    await clock.advanceAsync(PROVEN_AFTER_MS)
    expect(await reconciler().runOnce()).toMatchObject({ looked: 1, resolved: 1 })
    expect(await phasesOf(fixture, recordId)).toEqual([])
  })

  it('finds a lost effect by a later try after not_found', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, clock, record } = fixture
    await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'not_found' })
    await reconciler().runOnce()
    provider.answer = async () => ({ kind: 'done', result: { id: 'ch_1', amount: 5 } })
    expect(await reconciler().runOnce()).toEqual(NOTHING)
    await clock.advanceAsync(HOUR_MS)
    expect(await reconciler().runOnce()).toMatchObject({ resolved: 1 })
    expect((await record()).state).toBe('failed_retryable')
  })

  it('never treats not_found as a proof without notFoundIsFinalAfterMs', async () => {
    const fixture = operatorFixture({ effect: { notFoundIsFinalAfterMs: undefined as never } })
    const { provider, reconciler, clock, record } = fixture
    await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'not_found' })
    const passes = reconciler({ schedule: { maxAttempts: 3 } })
    for (let n = 0; n < 5; n++) {
      await passes.runOnce()
      await clock.advanceAsync(30 * 24 * HOUR_MS)
    }
    expect(await record()).toMatchObject({ state: 'unknown', reconcileAt: undefined })
  })
})

describe('a provider that fails to answer', () => {
  it('uses up a try when reconcile throws, and emits the error', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, record, heard, clock } = fixture
    await lostPayment(fixture)
    provider.answer = () => {
      throw new Error('503')
    }
    expect(await reconciler().runOnce()).toMatchObject({ looked: 1, postponed: 1 })
    expect(heard('maintenance_failed')).toMatchObject([
      { task: 'reconcile', error: { message: '503' } },
    ])
    const { tries, reconcileAt, state } = await record()
    expect([state, tries]).toEqual(['unknown', 1])
    const pauseMs = reconcileAt!.getTime() - clock.nowMs()
    expect(pauseMs).toBeGreaterThanOrEqual(7_500)
    expect(pauseMs).toBeLessThanOrEqual(12_500)
  })

  it.each([7, { id: 'ch_1' }, 'a\0b', 'x'.repeat(256)])(
    'resolves the effect without the invalid provider id %j',
    async (providerId) => {
      const fixture = operatorFixture()
      const { reconciler, provider } = fixture
      const { recordId } = await lostPayment(fixture)
      const result = { id: undefined as never, amount: 5 }
      provider.answer = async () => ({ kind: 'done', result, providerId: providerId as string })
      expect(await reconciler().runOnce()).toMatchObject({ resolved: 1 })
      const [charge] = await phasesOf(fixture, recordId)
      expect(charge).toMatchObject({ state: 'done', providerId: undefined })
    },
  )

  it('uses up a try when reconcile returns an invalid answer', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, heard } = fixture
    await lostPayment(fixture)
    provider.answer = async () => 'paid' as never
    expect(await reconciler().runOnce()).toMatchObject({ postponed: 1 })
    expect(String(heard('maintenance_failed')[0]!.error)).toContain('must return { kind }')
  })

  it('aborts the signal of a reconcile that hangs, and postpones the record', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, record, clock, heard } = fixture
    await lostPayment(fixture)
    let given: AbortSignal | undefined
    provider.answer = (signal) => {
      given = signal
      return new Promise(() => {})
    }
    const pass = reconciler({ timeoutMs: 5_000 }).runOnce()
    await clock.advanceAsync(4_999)
    expect(given!.aborted).toBe(false)
    await clock.advanceAsync(1)
    expect(await pass).toMatchObject({ postponed: 1 })
    expect(given!.aborted).toBe(true)
    expect((await record()).tries).toBe(1)
    expect(String(heard('maintenance_failed')[0]!.error)).toContain('within 5000 ms')
  })

  it('reconciles other records while one call hangs', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, record, clock } = fixture
    await lostPayment(fixture, 'hangs')
    for (const key of ['a', 'b', 'c', 'd']) await lostPayment(fixture, key)
    await clock.advanceAsync(1_000)
    provider.answer = async () => {
      if (provider.asked === 1) return new Promise(() => {})
      return { kind: 'not_executed' }
    }
    const pass = reconciler({ concurrency: 2 }).runOnce()
    await clock.advanceAsync(0)
    for (const key of ['a', 'b', 'c', 'd']) {
      expect((await record(key)).state).toBe('failed_retryable')
    }
    expect((await record('hangs')).state).toBe('unknown')
    await clock.advanceAsync(30_000)
    expect(await pass).toMatchObject({ looked: 5, resolved: 4, postponed: 1 })
  })

  it('asks about at most concurrency records at a time', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, clock } = fixture
    for (let n = 0; n < 6; n++) await lostPayment(fixture, `k${n}`)
    await clock.advanceAsync(1_000)
    let [now, most] = [0, 0]
    provider.answer = async () => {
      most = Math.max(most, ++now)
      await new Promise((resolve) => setImmediate(resolve))
      now--
      return { kind: 'not_executed' }
    }
    expect(await reconciler({ concurrency: 3 }).runOnce()).toMatchObject({ resolved: 6 })
    expect(most).toBe(3)
    expect(await reconciler({ recordsMax: 1 }).runOnce()).toEqual(NOTHING)
  })
})

describe('giving up', () => {
  it('gives a record up after the last try and leaves it unknown for an operator', async () => {
    const fixture = operatorFixture()
    const { reconciler, record, clock, heard } = fixture
    const { recordId } = await lostPayment(fixture)
    const passes = reconciler({ schedule: { maxAttempts: 3 } })
    const reports = []
    for (let n = 0; n < 5; n++) {
      reports.push(await passes.runOnce())
      await clock.advanceAsync(HOUR_MS)
    }
    expect(reports.map(({ postponed, givenUp }) => [postponed, givenUp])).toEqual([
      [1, 0],
      [1, 0],
      [0, 1],
      [0, 0],
      [0, 0],
    ])
    expect(await record()).toMatchObject({ state: 'unknown', reconcileAt: undefined, tries: 3 })
    expect(heard('reconcile_given_up')).toMatchObject([{ recordId, tries: 3 }])
  })

  it('tries a record again that an operator made due after it was given up', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, record, operatorStore } = fixture
    const { recordId } = await lostPayment(fixture)
    await reconciler({ schedule: { maxAttempts: 1 } }).runOnce()
    expect((await record()).reconcileAt).toBeUndefined()
    await operatorStore.act(
      { kind: 'requeue', ref: { recordId } },
      { who: 'ada', why: 'provider is back' },
    )
    provider.answer = async () => ({ kind: 'not_executed' })
    expect(await reconciler({ schedule: { maxAttempts: 1 } }).runOnce()).toMatchObject({
      resolved: 1,
    })
  })

  it('does not give a record up that an operator made due during the last try', async () => {
    const fixture = operatorFixture()
    const { reconciler, provider, heard, record, engine } = fixture
    const { recordId } = await lostPayment(fixture)
    const asked = Promise.withResolvers<void>()
    const answer = Promise.withResolvers<{ kind: 'pending' }>()
    provider.answer = () => {
      asked.resolve()
      return answer.promise
    }
    const pass = reconciler({ schedule: { maxAttempts: 1 } }).runOnce()
    await asked.promise
    const acted = await createOperator({ engine }).processNow({ recordId }, BY)
    expect(acted.kind).toBe('done')
    answer.resolve({ kind: 'pending' })
    expect(await pass).toMatchObject({ looked: 1, moved: 1, givenUp: 0 })
    expect(heard('reconcile_given_up')).toEqual([])
    expect(await record()).toMatchObject({ tries: 0, reconcileAt: expect.any(Date) })
  })

  it('gives a record up at once if its effect has no reconcile', async () => {
    const fixture = operatorFixture({
      effect: { reconcile: undefined as never, notFoundIsFinalAfterMs: undefined as never },
    })
    const { reconciler, heard } = fixture
    await lostPayment(fixture)
    expect(await reconciler().runOnce()).toMatchObject({ givenUp: 1 })
    expect(heard('reconcile_given_up')).toMatchObject([{ tries: 1 }])
  })

  // The process crashed in every try: only the takes were counted.
  it('gives a record up without a call of the provider if no earlier try has ended', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, operatorStore, clock } = fixture
    await lostPayment(fixture)
    for (let n = 0; n < 2; n++) {
      await operatorStore.takeUnknown({ limit: 1, againMs: 1 })
      await clock.advanceAsync(1)
    }
    expect(await reconciler({ schedule: { maxAttempts: 2 } }).runOnce()).toMatchObject({
      givenUp: 1,
    })
    expect(provider.asked).toBe(0)
  })
})

describe('operations that are not registered here', () => {
  it('reports unregistered operations as orphans, and leaves them to other nodes', async () => {
    const fixture = operatorFixture()
    const { reconciler, heard, record, clock, provider } = fixture
    const { recordId } = await lostPayment(fixture)
    const foreign = reconciler({ operations: [], schedule: { maxAttempts: 2 } })
    expect(await foreign.runOnce()).toMatchObject({ postponed: 1 })
    expect(heard('operation_orphaned')).toMatchObject([{ name: 'pay', version: 1, recordId }])
    expect(provider.asked).toBe(0)
    await clock.advanceAsync(HOUR_MS)
    expect(await foreign.runOnce()).toMatchObject({ givenUp: 1 })
    expect((await record()).state).toBe('unknown')
  })

  it('treats other versions of an operation as unregistered', async () => {
    const fixture = operatorFixture()
    const { pay, reconciler, heard, provider } = fixture
    await lostPayment(fixture)
    const newer = { name: pay.name, version: 2, effects: pay.effects }
    await reconciler({ operations: [newer] }).runOnce()
    expect(heard('operation_orphaned')).toHaveLength(1)
    expect(provider.asked).toBe(0)
  })
})

describe('a record without an operation', () => {
  it('resolves a record without an operation by the handler of its scope', async () => {
    const fixture = operatorFixture()
    const { reconciler, engine, heard, audit } = fixture
    const { recordId, scope, key } = await lostPlain(fixture)
    const result = bytes('the reply')
    const passes = reconciler({
      handlers: {
        'POST /orders': async ({ record, signal }) => {
          expect([record.recordId, signal.aborted]).toEqual([recordId, false])
          return { kind: 'completed', result }
        },
      },
    })
    expect(await passes.runOnce()).toMatchObject({ resolved: 1 })
    const again = await engine.run({ scope, key, fingerprint: 'f' }, () => bytes('second run'))
    expect(again).toMatchObject({ kind: 'replayed', result })
    expect(heard('reconcile_resolved')).toMatchObject([{ to: 'completed', recordId }])
    expect(await audit()).toMatchObject([{ act: 'resolve', who: 'reconciler', subject: recordId }])
  })

  it('lets a record run again when its handler returns failed_retryable', async () => {
    const fixture = operatorFixture()
    const { reconciler, engine } = fixture
    const { scope, key } = await lostPlain(fixture)
    const handlers = { 'POST /orders': () => ({ kind: 'failed_retryable' }) as const }
    await reconciler({ handlers }).runOnce()
    const again = await engine.run({ scope, key, fingerprint: 'f' }, () => bytes('second run'))
    expect(again.kind).toBe('ran')
  })

  it.each([
    ['pending', () => ({ kind: 'pending' }) as const],
    ['nonsense', () => ({ kind: 'complete' }) as never],
    ['nothing', () => undefined as never],
    ['no bytes', () => ({ kind: 'completed', result: 'text' }) as never],
    [
      'an error',
      () => {
        throw new Error('503')
      },
    ],
  ])('postpones a record when its handler returns %s', async (_, handler) => {
    const fixture = operatorFixture()
    const { reconciler, engine } = fixture
    const { recordId } = await lostPlain(fixture)
    const passes = reconciler({ handlers: { 'POST /orders': handler } })
    expect(await passes.runOnce()).toMatchObject({ postponed: 1 })
    expect(await engine.read({ recordId })).toMatchObject({ state: 'unknown', tries: 1 })
  })

  it('leaves a record without a handler to other nodes until the last try', async () => {
    const fixture = operatorFixture()
    const { reconciler, clock, heard } = fixture
    await lostPlain(fixture)
    const passes = reconciler({ schedule: { maxAttempts: 2 } })
    expect(await passes.runOnce()).toMatchObject({ postponed: 1 })
    await clock.advanceAsync(HOUR_MS)
    expect(await passes.runOnce()).toMatchObject({ givenUp: 1 })
    expect(heard('reconcile_given_up')).toHaveLength(1)
  })
})

describe('several reconcilers', () => {
  it('asks the provider once for each try on several nodes', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, clock } = fixture
    for (let n = 0; n < 5; n++) await lostPayment(fixture, `k${n}`)
    await clock.advanceAsync(1_000)
    const nodes = [reconciler(), reconciler(), reconciler()]
    const reports = await Promise.all(nodes.map((node) => node.runOnce()))
    expect(reports.reduce((sum, { looked }) => sum + looked, 0)).toBe(5)
    expect(provider.asked).toBe(5)
  })

  // After the longest time that a try can take with its store calls, another node takes over.
  it('takes over the records of a reconciler that crashed', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, clock } = fixture
    await lostPayment(fixture)
    provider.answer = () => new Promise(() => {})
    void reconciler({ timeoutMs: HOUR_MS }).runOnce()
    await clock.advanceAsync(0)
    expect(provider.asked).toBe(1)
    provider.answer = async () => ({ kind: 'not_executed' })
    await clock.advanceAsync(HOUR_MS - 1)
    expect(await reconciler().runOnce()).toEqual(NOTHING)
    await clock.advanceAsync(60_000)
    expect(await reconciler().runOnce()).toMatchObject({ looked: 1 })
  })

  it('writes nothing about a record that changed during the try', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, heard, audit } = fixture
    const { downstreamKey } = await lostPayment(fixture)
    provider.answer = async () => {
      await reconciler().resolve({ downstreamKey }, { kind: 'done', result: { id: 'ch_1' } })
      return { kind: 'not_executed' }
    }
    expect(await reconciler().runOnce()).toMatchObject({ moved: 1 })
    expect(heard('effect_found')).toMatchObject([{ finding: 'done' }])
    expect(await audit()).toMatchObject([{ who: 'webhook' }])
  })
})

// The provider is asked about the first send. During the call an operator releases the record and
// the effect is sent a second time. A verdict on the first send would allow a third one.
it('does not apply a finding to a send that came after the question', async () => {
  const fixture = operatorFixture()
  const { provider, reconciler, operatorStore, engine, pay, heard } = fixture
  const { recordId } = await lostPayment(fixture)
  const answer = Promise.withResolvers<{ kind: 'not_executed' }>()
  provider.answer = () => answer.promise
  const pass = reconciler().runOnce()
  await expect.poll(() => provider.asked).toBe(1)

  await operatorStore.act({ kind: 'release', ref: { recordId } }, { who: 'ada', why: 'it is free' })
  const answers = [{ kind: 'not_executed' }, { kind: 'pending' }] as const
  provider.answer = async () => answers[provider.asked - 2]!
  await createWorker({ engine, operations: [pay] }).runOnce()
  expect(provider.sent).toBe(2)

  answer.resolve({ kind: 'not_executed' })
  expect(await pass).toMatchObject({ moved: 1 })
  expect(await phasesOf(fixture, recordId)).toMatchObject([{ state: 'intended', attempt: 2 }])
  expect(heard('reconcile_failed')).toMatchObject([{ reason: 'other_attempt' }])
})

describe('run', () => {
  it('polls at its interval, and waits for its records when the signal aborts', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, clock, record } = fixture
    const stop = new AbortController()
    const running = reconciler({ pollMs: 5_000 }).run(stop.signal)
    await clock.advanceAsync(0)
    await lostPayment(fixture)
    const answer = Promise.withResolvers<{ kind: 'not_executed' }>()
    provider.answer = () => answer.promise
    await clock.advanceAsync(5_000)
    expect(provider.asked).toBe(1)
    stop.abort()
    answer.resolve({ kind: 'not_executed' })
    await running
    expect((await record()).state).toBe('failed_retryable')
    expect(clock.pendingTimers).toBe(0)
  })

  it('continues after a store failure, which is emitted', async () => {
    const fixture = operatorFixture()
    const { reconciler, clock, operatorStore, heard, provider } = fixture
    await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'not_executed' })
    const { takeUnknown } = operatorStore
    let calls = 0
    Object.assign(operatorStore, {
      takeUnknown: async (request: Parameters<typeof takeUnknown>[0]) => {
        if (calls++ === 0) throw new Error('disk full')
        return takeUnknown(request)
      },
    })
    const stop = new AbortController()
    const running = reconciler().run(stop.signal)
    await clock.advanceAsync(0)
    expect(heard('store_error')).toMatchObject([{ call: 'takeUnknown' }])
    await clock.advanceAsync(5_000)
    expect(heard('effect_found')).toHaveLength(1)
    stop.abort()
    await running
  })
})

describe('options of createReconciler', () => {
  it('createReconciler rejects a store that keeps no operations', () => {
    const engine = createEngine({ store: memoryStore() })
    expect(() => createReconciler({ engine })).toThrow(/"memory" keeps no operations/)
  })

  it.each([
    [{ handler: {} }, /has no option "handler"/],
    [{ handlers: { pay: 'later' } }, /handlers\["pay"\] must be a function/],
    [{ operations: [{ name: 'pay' }] }, /must contain operations from defineOperation/],
    [{ operations: {} }, /must be an array/],
    [{ schedule: { maxAttempts: 0 } }, /schedule.maxAttempts must be a whole number from 1/],
    [{ schedule: { factor: 0.5 } }, /schedule.factor must be a number from 1/],
    [{ concurrency: 0 }, /concurrency/],
  ])('createReconciler rejects %j', (options, message) => {
    const { reconciler } = operatorFixture()
    expect(() => reconciler(options as never)).toThrow(message)
  })

  it('createReconciler rejects the same operation twice', () => {
    const { reconciler, pay } = operatorFixture()
    expect(() => reconciler({ operations: [pay, pay] })).toThrow(/version 1 of "pay" twice/)
  })
})
