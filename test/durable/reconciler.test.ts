import { describe, expect, it } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import { createWorker } from '../../src/durable/index.ts'
import { createOperator } from '../../src/durable/operator.ts'
import { createReconciler } from '../../src/durable/reconciler.ts'
import { decodeValue } from '../../src/durable/values.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import {
  BY,
  bytes,
  deskFixture,
  lostPayment,
  lostPlain,
  phasesOf,
  PROVEN_AFTER_MS,
} from './desk-fixture.ts'

const NOTHING = { looked: 0, resolved: 0, postponed: 0, givenUp: 0, moved: 0, failed: 0 }
const HOUR_MS = 3_600_000

describe('an effect whose answer was lost', () => {
  it('is found, and its operation goes on with the result without sending again', async () => {
    const fixture = deskFixture()
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

  it('is written into the audit with its verdict', async () => {
    const fixture = deskFixture()
    const { provider, reconciler, audit } = fixture
    const { recordId } = await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'not_executed' })
    await reconciler().runOnce()
    const [entry, ...more] = await audit()
    expect(entry).toMatchObject({ who: 'reconciler', act: 'conclude', subject: recordId })
    expect(entry!.why).toContain('charge')
    expect(more).toEqual([])
  })

  // "Not found" while the request may still be under way proves nothing.
  it('is not sent again because it was not found yet', async () => {
    const fixture = deskFixture()
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
    // At the very moment from which it is proof, and not a pause later.
    expect(clock.nowMs()).toBe(provenMs)
    expect(await passes.runOnce()).toMatchObject({ resolved: 1 })
    expect((await record()).state).toBe('failed_retryable')
    expect(await phasesOf(fixture, recordId)).toEqual([])
    expect(fixture.heard('effect_found')).toMatchObject([{ finding: 'not_executed' }])
  })

  it('is looked into when it will be proof that it was not found', async () => {
    const fixture = deskFixture()
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

  it('is found later, after it was not found at first', async () => {
    const fixture = deskFixture()
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

  it('is never taken for undone where nobody said how long it may be under way', async () => {
    const fixture = deskFixture({ effect: { provenAfterMs: undefined as never } })
    const { provider, reconciler, clock, record } = fixture
    await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'not_found' })
    const passes = reconciler({ schedule: { tries: 3 } })
    for (let n = 0; n < 5; n++) {
      await passes.runOnce()
      await clock.advanceAsync(30 * 24 * HOUR_MS)
    }
    expect(await record()).toMatchObject({ state: 'unknown', reconcileAt: undefined })
  })
})

describe('a provider that cannot be asked', () => {
  it('counts a try when its reconcile throws, and says why', async () => {
    const fixture = deskFixture()
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
    'is believed where it has the provider id %j, which is left out',
    async (providerId) => {
      const fixture = deskFixture()
      const { reconciler, provider } = fixture
      const { recordId } = await lostPayment(fixture)
      const result = { id: undefined as never, amount: 5 }
      provider.answer = async () => ({ kind: 'done', result, providerId: providerId as string })
      expect(await reconciler().runOnce()).toMatchObject({ resolved: 1 })
      const [charge] = await phasesOf(fixture, recordId)
      expect(charge).toMatchObject({ state: 'done', providerId: undefined })
    },
  )

  it('counts a try when it answers nonsense', async () => {
    const fixture = deskFixture()
    const { provider, reconciler, heard } = fixture
    await lostPayment(fixture)
    provider.answer = async () => 'paid' as never
    expect(await reconciler().runOnce()).toMatchObject({ postponed: 1 })
    expect(String(heard('maintenance_failed')[0]!.error)).toContain('must return { kind }')
  })

  it('is given up on in time when it hangs, and its signal aborts', async () => {
    const fixture = deskFixture()
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

  it('holds back no other record while it hangs', async () => {
    const fixture = deskFixture()
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

  it('is asked for a bounded number of records at a time', async () => {
    const fixture = deskFixture()
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
  it('comes after the last try, and leaves the record unknown for an operator', async () => {
    const fixture = deskFixture()
    const { reconciler, record, clock, heard } = fixture
    const { recordId } = await lostPayment(fixture)
    const passes = reconciler({ schedule: { tries: 3 } })
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

  it('is taken back by an operator who has it looked into again', async () => {
    const fixture = deskFixture()
    const { provider, reconciler, record, desk } = fixture
    const { recordId } = await lostPayment(fixture)
    await reconciler({ schedule: { tries: 1 } }).runOnce()
    expect((await record()).reconcileAt).toBeUndefined()
    await desk.act({ kind: 'requeue', ref: { recordId } }, { who: 'ada', why: 'provider is back' })
    provider.answer = async () => ({ kind: 'not_executed' })
    expect(await reconciler({ schedule: { tries: 1 } }).runOnce()).toMatchObject({ resolved: 1 })
  })

  it('does not undo that an operator has asked for another look meanwhile', async () => {
    const fixture = deskFixture()
    const { reconciler, provider, heard, record, engine } = fixture
    const { recordId } = await lostPayment(fixture)
    const asked = Promise.withResolvers<void>()
    const answer = Promise.withResolvers<{ kind: 'pending' }>()
    provider.answer = () => {
      asked.resolve()
      return answer.promise
    }
    const pass = reconciler({ schedule: { tries: 1 } }).runOnce()
    await asked.promise
    const acted = await createOperator({ engine }).requeue({ recordId }, BY)
    expect(acted.kind).toBe('done')
    answer.resolve({ kind: 'pending' })
    expect(await pass).toMatchObject({ looked: 1, moved: 1, givenUp: 0 })
    expect(heard('reconcile_given_up')).toEqual([])
    expect(await record()).toMatchObject({ tries: 0, reconcileAt: expect.any(Date) })
  })

  it('comes at once where an effect cannot be asked for by anybody', async () => {
    const fixture = deskFixture({
      effect: { reconcile: undefined as never, provenAfterMs: undefined as never },
    })
    const { reconciler, heard } = fixture
    await lostPayment(fixture)
    expect(await reconciler().runOnce()).toMatchObject({ givenUp: 1 })
    expect(heard('reconcile_given_up')).toMatchObject([{ tries: 1 }])
  })

  // Its process died every time it was asked for: the takes have counted, and nothing else has.
  it('comes without a further question where no earlier look has come to its end', async () => {
    const fixture = deskFixture()
    const { provider, reconciler, desk, clock } = fixture
    await lostPayment(fixture)
    for (let n = 0; n < 2; n++) {
      await desk.takeUnknown({ limit: 1, againMs: 1 })
      await clock.advanceAsync(1)
    }
    expect(await reconciler({ schedule: { tries: 2 } }).runOnce()).toMatchObject({ givenUp: 1 })
    expect(provider.asked).toBe(0)
  })
})

describe('operations of others', () => {
  it('are said to be orphans, and left to other nodes until the tries are over', async () => {
    const fixture = deskFixture()
    const { reconciler, heard, record, clock, provider } = fixture
    const { recordId } = await lostPayment(fixture)
    const foreign = reconciler({ operations: [], schedule: { tries: 2 } })
    expect(await foreign.runOnce()).toMatchObject({ postponed: 1 })
    expect(heard('operation_orphaned')).toMatchObject([{ name: 'pay', version: 1, recordId }])
    expect(provider.asked).toBe(0)
    await clock.advanceAsync(HOUR_MS)
    expect(await foreign.runOnce()).toMatchObject({ givenUp: 1 })
    expect((await record()).state).toBe('unknown')
  })

  it('are those of other versions, too', async () => {
    const fixture = deskFixture()
    const { pay, reconciler, heard, provider } = fixture
    await lostPayment(fixture)
    const newer = { name: pay.name, version: 2, effects: pay.effects }
    await reconciler({ operations: [newer] }).runOnce()
    expect(heard('operation_orphaned')).toHaveLength(1)
    expect(provider.asked).toBe(0)
  })
})

describe('a plain record', () => {
  it('gets its verdict from the handler of its operation', async () => {
    const fixture = deskFixture()
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

  it('is free again when its handler proves that nothing happened', async () => {
    const fixture = deskFixture()
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
  ])('waits where its handler says %s', async (_, handler) => {
    const fixture = deskFixture()
    const { reconciler, engine } = fixture
    const { recordId } = await lostPlain(fixture)
    const passes = reconciler({ handlers: { 'POST /orders': handler } })
    expect(await passes.runOnce()).toMatchObject({ postponed: 1 })
    expect(await engine.read({ recordId })).toMatchObject({ state: 'unknown', tries: 1 })
  })

  it('without a handler is left to other nodes until the tries are over', async () => {
    const fixture = deskFixture()
    const { reconciler, clock, heard } = fixture
    await lostPlain(fixture)
    const passes = reconciler({ schedule: { tries: 2 } })
    expect(await passes.runOnce()).toMatchObject({ postponed: 1 })
    await clock.advanceAsync(HOUR_MS)
    expect(await passes.runOnce()).toMatchObject({ givenUp: 1 })
    expect(heard('reconcile_given_up')).toHaveLength(1)
  })
})

describe('several reconcilers', () => {
  it('ask the provider once per round', async () => {
    const fixture = deskFixture()
    const { provider, reconciler, clock } = fixture
    for (let n = 0; n < 5; n++) await lostPayment(fixture, `k${n}`)
    await clock.advanceAsync(1_000)
    const nodes = [reconciler(), reconciler(), reconciler()]
    const reports = await Promise.all(nodes.map((node) => node.runOnce()))
    expect(reports.reduce((sum, { looked }) => sum + looked, 0)).toBe(5)
    expect(provider.asked).toBe(5)
  })

  // Longer than any look can take with its store calls; then somebody else takes over.
  it('take over what one of them has died over', async () => {
    const fixture = deskFixture()
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

  it('write nothing about a record that has moved on while they asked', async () => {
    const fixture = deskFixture()
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

// It is asked about the first sending; meanwhile somebody has let it be sent a second time, and
// what was true of the first would have the second one sent again.
it('says nothing of a sending that came after it had asked', async () => {
  const fixture = deskFixture()
  const { provider, reconciler, desk, engine, pay, heard } = fixture
  const { recordId } = await lostPayment(fixture)
  const answer = Promise.withResolvers<{ kind: 'not_executed' }>()
  provider.answer = () => answer.promise
  const pass = reconciler().runOnce()
  await expect.poll(() => provider.asked).toBe(1)

  await desk.act({ kind: 'release', ref: { recordId } }, { who: 'ada', why: 'it is free' })
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
  it('looks on at its own pace, and ends what it has begun when it is told to stop', async () => {
    const fixture = deskFixture()
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

  it('goes on after a failure of the store, which is reported', async () => {
    const fixture = deskFixture()
    const { reconciler, clock, desk, heard, provider } = fixture
    await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'not_executed' })
    const { takeUnknown } = desk
    let calls = 0
    Object.assign(desk, {
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

describe('options', () => {
  it('refuse a store that keeps no operations', () => {
    const engine = createEngine({ store: memoryStore() })
    expect(() => createReconciler({ engine })).toThrow(/"memory" keeps no operations/)
  })

  it.each([
    [{ handler: {} }, /has no option "handler"/],
    [{ handlers: { pay: 'later' } }, /handlers\["pay"\] must be a function/],
    [{ operations: [{ name: 'pay' }] }, /must hold what operation\(\) returns/],
    [{ operations: {} }, /must be an array/],
    [{ schedule: { tries: 0 } }, /schedule.tries must be a whole number from 1/],
    [{ schedule: { factor: 0.5 } }, /schedule.factor must be a number from 1/],
    [{ concurrency: 0 }, /concurrency/],
  ])('refuse %j', (options, message) => {
    const { reconciler } = deskFixture()
    expect(() => reconciler(options as never)).toThrow(message)
  })

  it('refuse one operation twice', () => {
    const { reconciler, pay } = deskFixture()
    expect(() => reconciler({ operations: [pay, pay] })).toThrow(/version 1 of "pay" twice/)
  })
})
