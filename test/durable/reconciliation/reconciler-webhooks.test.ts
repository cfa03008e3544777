import { describe, expect, it } from 'vitest'
import { createWorker } from '../../../src/durable/index.ts'
import type { Schema } from '../../../src/durable/operations/schema.ts'
import { decodeValue } from '../../../src/durable/values.ts'
import {
  BY,
  bytes,
  operatorFixture,
  lostPayment,
  lostPlain,
  phasesOf,
  type Charge,
} from '../operator/operator-fixture.ts'

const PAID = { kind: 'done', result: { id: 'ch_1', amount: 5 } } as const

describe('a webhook', () => {
  it.each(['recordId', 'downstreamKey'] as const)(
    'resolves a lost effect by its %s',
    async (name) => {
      const fixture = operatorFixture()
      const { reconciler, record, engine, pay, provider, heard, audit } = fixture
      const ids = await lostPayment(fixture)
      const { recordId, downstreamKey } = ids
      const target = name === 'recordId' ? { recordId } : { downstreamKey }
      const outcome = await reconciler().resolve(target, PAID)
      expect(outcome).toMatchObject({ kind: 'done', subject: ids.recordId })
      expect(heard('effect_found')).toMatchObject([{ phase: 'charge', finding: 'done' }])
      expect(heard('reconcile_resolved')).toMatchObject([{ to: 'failed_retryable' }])
      expect(await audit()).toMatchObject([
        { act: 'conclude', who: 'webhook', why: 'said by the provider', subject: ids.recordId },
      ])
      await createWorker({ engine, operations: [pay] }).runOnce()
      expect((await record()).state).toBe('completed')
      expect(provider.sent).toBe(1)
    },
  )

  it('changes nothing when a webhook comes a second time', async () => {
    const fixture = operatorFixture()
    const { reconciler, audit, heard } = fixture
    const { downstreamKey, recordId } = await lostPayment(fixture)
    const webhooks = reconciler()
    await webhooks.resolve({ downstreamKey }, PAID)
    const other = { kind: 'done', result: { id: 'ch_2', amount: 9 } } as const
    for (const target of [{ downstreamKey }, { recordId }, { providerId: 'ch_1' }]) {
      const again = await webhooks.resolve(target, other)
      expect(again).toEqual({ kind: 'already', subject: recordId })
    }
    const [charge] = await phasesOf(fixture, recordId)
    expect(decodeValue(charge!.result)).toEqual(PAID.result)
    expect(await audit()).toHaveLength(1)
    expect(heard('effect_found')).toHaveLength(1)
    expect(heard('reconcile_failed')).toEqual([])
  })

  it('records a webhook once when it comes twice at the same time', async () => {
    const fixture = operatorFixture()
    const { reconciler, audit } = fixture
    const { downstreamKey } = await lostPayment(fixture)
    const webhooks = reconciler()
    const calls = Array.from({ length: 5 }, () => webhooks.resolve({ downstreamKey }, PAID))
    const kinds = (await Promise.all(calls)).map(({ kind }) => kind)
    expect(kinds.filter((kind) => kind === 'done')).toHaveLength(1)
    expect(kinds.filter((kind) => kind === 'already')).toHaveLength(4)
    expect(await audit()).toHaveLength(1)
  })

  // The webhook arrives before the response; both are about the same charge.
  it('gives the holder the result of a webhook that comes before the response', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, run, record, heard } = fixture
    const response = Promise.withResolvers<Charge>()
    provider.send = () => response.promise
    const running = run()
    await expect.poll(() => provider.sent).toBe(1)
    const { recordId } = await record()
    const outcome = await reconciler().resolve({ recordId }, PAID)
    expect(outcome).toMatchObject({ kind: 'done', record: { state: 'in_progress' } })
    expect(heard('reconcile_resolved')).toEqual([])
    response.resolve({ id: 'not used', amount: 0 })
    await running
    const [charge] = await phasesOf(fixture, recordId)
    expect(decodeValue(charge!.result)).toEqual(PAID.result)
    const { result } = await record()
    expect(new TextDecoder().decode(result)).toContain('ch_1')
  })

  it('refuses not_executed while a process holds the record', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, run, record } = fixture
    const response = Promise.withResolvers<Charge>()
    provider.send = () => response.promise
    const running = run()
    await expect.poll(() => provider.sent).toBe(1)
    const { recordId } = await record()
    const outcome = await reconciler().resolve({ recordId }, { kind: 'not_executed' })
    expect(outcome).toEqual({ kind: 'refused', subject: recordId, reason: 'in_progress' })
    response.resolve({ id: 'ch_1', amount: 5 })
    expect((await running).kind).toBe('ran')
  })

  it('lets a worker send the effect again after not_executed', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler, engine, pay, record } = fixture
    const { downstreamKey } = await lostPayment(fixture)
    await reconciler().resolve({ downstreamKey }, { kind: 'not_executed' })
    provider.send = async () => ({ id: 'ch_2', amount: 5 })
    await createWorker({ engine, operations: [pay] }).runOnce()
    expect(provider.sent).toBe(2)
    expect((await record()).state).toBe('completed')
  })

  it('does not apply a webhook about an earlier attempt to a later one', async () => {
    const fixture = operatorFixture()
    const { reconciler, heard } = fixture
    const { recordId, attempt } = await lostPayment(fixture)
    const target = { recordId, attempt: attempt + 1 }
    const outcome = await reconciler().resolve(target, { kind: 'not_executed' })
    expect(outcome).toEqual({ kind: 'refused', subject: recordId, reason: 'other_attempt' })
    expect(heard('reconcile_failed')).toEqual([
      { kind: 'reconcile_failed', reason: 'other_attempt' },
    ])
  })

  it.each([{ recordId: 'unknown' }, { downstreamKey: 'unknown' }, { providerId: 'unknown' }])(
    'returns not_found for %j and writes nothing',
    async (target) => {
      const { reconciler, audit } = operatorFixture()
      expect(await reconciler().resolve(target, PAID)).toEqual({ kind: 'not_found' })
      expect(await audit()).toEqual([])
    },
  )

  it('refuses a webhook if the opposite verdict was recorded at the same time', async () => {
    const fixture = operatorFixture()
    const { store, reconciler, operatorStore, record } = fixture
    const { recordId, downstreamKey } = await lostPayment(fixture)
    const { phases } = store.durable
    const { load } = phases
    phases.load = async (id) => {
      phases.load = load
      const finding = { kind: 'not_executed' } as const
      await operatorStore.act({ kind: 'conclude', phase: { downstreamKey }, finding }, BY)
      return load(id)
    }
    // The answer is not `already`, because the result of this webhook is not on record.
    expect(await reconciler().resolve({ downstreamKey }, PAID)).toEqual({ kind: 'not_found' })
    expect(await phasesOf(fixture, recordId)).toEqual([])
    expect((await record()).state).toBe('failed_retryable')
  })

  it('refuses a webhook for a record without an effect', async () => {
    const fixture = operatorFixture()
    const { recordId } = await lostPlain(fixture)
    expect(await fixture.reconciler().resolve({ recordId }, PAID)).toEqual({
      kind: 'refused',
      subject: recordId,
      reason: 'no_phase',
    })
  })

  it('changes nothing about a completed payment when a webhook comes', async () => {
    const fixture = operatorFixture()
    const { provider, run, reconciler, record, audit } = fixture
    provider.send = async () => ({ id: 'ch_1', amount: 5 })
    await run()
    const { recordId, result } = await record()
    const outcome = await reconciler().resolve({ providerId: 'ch_1' }, PAID)
    expect(outcome).toEqual({ kind: 'already', subject: recordId })
    expect((await record()).result).toEqual(result)
    expect(await audit()).toEqual([])
  })

  it('resolves a lost effect without a webhook by asking the provider', async () => {
    const fixture = operatorFixture()
    const { provider, reconciler } = fixture
    await lostPayment(fixture)
    provider.answer = async () => PAID
    expect(await reconciler().runOnce()).toMatchObject({ resolved: 1 })
  })

  it('wakes a worker of the same process after a webhook', async () => {
    const fixture = operatorFixture()
    const { reconciler, engine, pay, record, clock } = fixture
    const { downstreamKey } = await lostPayment(fixture)
    const stop = new AbortController()
    const worker = createWorker({ engine, operations: [pay], pollMs: 3_600_000 })
    const running = worker.run(stop.signal)
    await clock.advanceAsync(0)
    await reconciler().resolve({ downstreamKey }, PAID)
    await expect.poll(async () => (await record()).state).toBe('completed')
    stop.abort()
    await running
  })
})

describe('the result of a webhook', () => {
  const schema: Schema<Charge> = {
    '~standard': {
      version: 1,
      vendor: 'test',
      validate: (value) =>
        (value as Partial<Charge>).amount === undefined
          ? { issues: [{ message: 'is missing', path: ['amount'] }] }
          : { value: value as Charge },
    },
  }

  it('leaves an effect open if the result of the webhook does not match its schema', async () => {
    const fixture = operatorFixture({ effect: { result: schema } })
    const { reconciler, audit } = fixture
    const { recordId } = await lostPayment(fixture)
    const bad = reconciler().resolve({ recordId }, { kind: 'done', result: { id: 'ch_1' } })
    await expect(bad).rejects.toThrow(/amount: is missing/)
    expect((await phasesOf(fixture, recordId))[0]!.state).toBe('intended')
    expect(await audit()).toEqual([])
    expect(await reconciler().resolve({ recordId }, PAID)).toMatchObject({ kind: 'done' })
  })

  it('takes the provider id from the webhook, or from the result by the effect', async () => {
    const fixture = operatorFixture()
    const [first, second] = [await lostPayment(fixture, 'a'), await lostPayment(fixture, 'b')]
    const webhooks = fixture.reconciler()
    await webhooks.resolve({ recordId: first.recordId }, PAID)
    await webhooks.resolve({ recordId: second.recordId }, { ...PAID, providerId: 'evt_9' })
    expect((await phasesOf(fixture, first.recordId))[0]!.providerId).toBe('ch_1')
    expect((await phasesOf(fixture, second.recordId))[0]!.providerId).toBe('evt_9')
  })

  it('records the result of a webhook without an invalid provider id', async () => {
    const fixture = operatorFixture({ effect: { providerId: () => 7 as never } })
    const [first, second] = [await lostPayment(fixture, 'a'), await lostPayment(fixture, 'b')]
    const webhooks = fixture.reconciler()
    const named = { ...PAID, providerId: { id: 'evt_9' } as never }
    for (const { recordId } of [first, second]) {
      expect(await webhooks.resolve({ recordId }, named)).toMatchObject({ kind: 'done' })
      const [charge] = await phasesOf(fixture, recordId)
      expect(charge).toMatchObject({ state: 'done', providerId: undefined })
    }
  })

  it('stores the result of a webhook unchecked if its operation is not registered', async () => {
    const fixture = operatorFixture({ effect: { result: schema } })
    const { recordId } = await lostPayment(fixture)
    const foreign = fixture.reconciler({ operations: [] })
    await foreign.resolve({ recordId }, { kind: 'done', result: { id: 'ch_1' } })
    const [charge] = await phasesOf(fixture, recordId)
    expect(decodeValue(charge!.result)).toEqual({ id: 'ch_1' })
  })
})

describe('a verdict on a whole record', () => {
  it('accepts a verdict on a whole record only with a record id', async () => {
    const fixture = operatorFixture()
    const { reconciler, engine, audit } = fixture
    const { recordId, scope, key } = await lostPlain(fixture)
    const result = bytes('the reply')
    const by = { who: 'importer', why: 'found in the bank statement' }
    const outcome = await reconciler().resolve({ recordId }, { kind: 'completed', result }, by)
    expect(outcome).toMatchObject({ kind: 'done', record: { state: 'completed' } })
    const again = await engine.run({ scope, key, fingerprint: 'f' }, () => bytes('x'))
    expect(again).toMatchObject({ kind: 'replayed', result })
    expect(await audit()).toMatchObject([{ act: 'resolve', ...by }])
    const second = await reconciler().resolve({ recordId }, { kind: 'failed_retryable' })
    expect(second).toEqual({ kind: 'refused', subject: recordId, reason: 'completed' })
    const wrong = { downstreamKey: 'x' } as never
    await expect(reconciler().resolve(wrong, { kind: 'failed_retryable' })).rejects.toThrow(
      /needs \{ recordId \}/,
    )
  })

  it('ends the wait of requests for the record at their next poll', async () => {
    const fixture = operatorFixture()
    const { engine, clock, operatorStore } = fixture
    const scope = { tenant: 'acme', operation: 'wait' }
    const held = Promise.withResolvers<Uint8Array>()
    const first = engine.run({ scope, key: 'k', fingerprint: 'f' }, () => held.promise)
    await clock.advanceAsync(0)
    const policy = engine.policy({ whileInProgress: { waitMs: 60_000 } })
    const waiting = engine.run({ scope, key: 'k', fingerprint: 'f', policy }, () => bytes('mine'))
    await clock.advanceAsync(10)
    const record = await engine.read({ scope, key: 'k' })
    const ref = { recordId: record!.recordId }
    await operatorStore.act({ kind: 'release', ref }, { who: 'ada', why: 'it hangs' })
    // Waiting requests poll at least every second.
    await clock.advanceAsync(1_000)
    expect(await waiting).toMatchObject({ kind: 'ran', result: bytes('mine') })
    held.resolve(bytes('late'))
    expect((await first).kind).not.toBe('ran')
  })
})

describe('reconciler.resolve', () => {
  it.each([
    [{}, PAID, {}, /target must be/],
    [{ recordId: undefined }, PAID, {}, /target must be/],
    [{ recordId: '' }, PAID, {}, /target must be/],
    [{ recordId: 'r', downstreamKey: 'd' }, PAID, {}, /target must be/],
    [{ recordId: 'r' }, { kind: 'paid' }, {}, /kind must be 'done' or 'not_executed'/],
    [{ recordId: 'r' }, { kind: 'completed', result: 'x' }, {}, /must be a Uint8Array/],
    [{ recordId: 'r' }, undefined, {}, /kind must be/],
    [{ recordId: 'r' }, PAID, { who: '' }, /who must be a non-empty string/],
    [{ recordId: 'r' }, PAID, { reason: 'x' }, /has no option "reason"/],
  ])('rejects the arguments %j, %j, %j', async (target, verdict, by, message) => {
    const { reconciler } = operatorFixture()
    const call = reconciler().resolve(target as never, verdict as never, by as never)
    await expect(call).rejects.toThrow(message)
  })
})
