import { describe, expect, it } from 'vitest'
import type { Actor } from '../../../src/core/store/operator-store.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { newRecordId, newToken } from '../../../src/core/record/identity.ts'
import { DAY_MS } from '../../../src/core/time/durations.ts'
import { createWorker } from '../../../src/durable/index.ts'
import { createOperator } from '../../../src/durable/operator/operator.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  BY,
  bytes,
  operatorFixture,
  lostPayment,
  lostPlain,
  phasesOf,
  type OperatorFixture,
} from './operator-fixture.ts'

function setup(options: Parameters<typeof operatorFixture>[0] = {}) {
  const fixture = operatorFixture(options)
  const { engine, pay } = fixture
  return { ...fixture, fixture, operator: createOperator({ engine, operations: [pay] }) }
}

/** A message that could not be relayed. */
async function deadMessage({ store, engine }: OperatorFixture) {
  const { outbox } = store.durable
  const id = newRecordId(0)
  const scope = { tenant: 'acme', operation: 'mail' }
  await engine.run({ scope, key: id, fingerprint: 'f' }, (context) =>
    context.transaction((tx) => {
      const plain = { topic: 'mail', key: undefined, partition: undefined, delayMs: 0 }
      void outbox.add(tx, { id, ...plain, payload: bytes('{}') })
      return bytes('x')
    }),
  )
  const claim = { topics: ['mail'], limit: 1, leaseMs: 1_000, token: newToken() }
  const [held] = await outbox.claim(claim)
  await outbox.settle([{ ...held!, kind: 'dead', error: 'no such address', blocks: false }])
  return id
}

describe('an operator', () => {
  it('releases a record from a holder that hangs', async () => {
    const { operator, engine, clock } = setup()
    const scope = { tenant: 'acme', operation: 'hang' }
    const held = Promise.withResolvers<Uint8Array>()
    const first = engine.run({ scope, key: 'k', fingerprint: 'f' }, () => held.promise)
    await clock.advanceAsync(0)
    const outcome = await operator.release({ scope, key: 'k' }, BY)
    expect(outcome).toMatchObject({ kind: 'done', record: { state: 'failed_retryable' } })
    const next = await engine.run({ scope, key: 'k', fingerprint: 'f' }, () => bytes('second'))
    expect(next.kind).toBe('ran')
    // The first run is fenced: its late result is dropped.
    held.resolve(bytes('first'))
    expect((await first).kind).not.toBe('ran')
    expect((await engine.read({ scope, key: 'k' }))!.result).toEqual(bytes('second'))
  })

  it('releases an operation, which a worker then resumes', async () => {
    const { operator, fixture, provider, engine, pay, record } = setup()
    const { recordId } = await lostPayment(fixture)
    await operator.release({ recordId }, BY)
    provider.answer = async () => ({ kind: 'done', result: { id: 'ch_1', amount: 5 } })
    await createWorker({ engine, operations: [pay] }).runOnce()
    expect((await record()).state).toBe('completed')
    expect(provider.sent).toBe(1)
  })

  it('resolves a whole record for the given attempt only', async () => {
    const { operator, fixture, engine, heard } = setup()
    const { scope, key, recordId } = await lostPlain(fixture)
    const verdict = { kind: 'completed', result: bytes('reply') } as const
    const other = await operator.resolve({ scope, key, attempt: 7 }, verdict, BY)
    expect(other).toMatchObject({ kind: 'refused', reason: 'other_attempt' })
    expect(await operator.resolve({ scope, key, attempt: 1 }, verdict, BY)).toMatchObject({
      kind: 'done',
      subject: recordId,
    })
    expect((await engine.read({ recordId }))!.result).toEqual(bytes('reply'))
    expect(heard('reconcile_resolved')).toMatchObject([{ recordId, to: 'completed' }])
  })

  it('resolves an effect, and a repeated call changes nothing', async () => {
    const { operator, fixture, heard, record } = setup()
    const { recordId, downstreamKey } = await lostPayment(fixture)
    const verdict = { kind: 'done', result: { id: 'ch_1', amount: 5 } } as const
    expect(await operator.resolve({ downstreamKey }, verdict, BY)).toMatchObject({ kind: 'done' })
    expect(await operator.resolve({ recordId }, verdict, BY)).toEqual({
      kind: 'already',
      subject: recordId,
    })
    expect((await phasesOf(fixture, recordId))[0]).toMatchObject({ providerId: 'ch_1' })
    expect((await record()).state).toBe('failed_retryable')
    expect(heard('effect_found')).toHaveLength(1)
  })

  it('makes the reconciler try a record again that it had given up', async () => {
    const { operator, fixture, reconciler, provider } = setup()
    const { recordId } = await lostPayment(fixture)
    await reconciler({ schedule: { maxAttempts: 1 } }).runOnce()
    const { records } = await operator.deadLetters()
    expect(records.map((record) => record.recordId)).toEqual([recordId])
    await operator.processNow({ recordId }, BY)
    expect((await operator.deadLetters()).records).toEqual([])
    provider.answer = async () => ({ kind: 'not_executed' })
    expect(await reconciler().runOnce()).toMatchObject({ resolved: 1 })
  })

  it('does not list records that are still reconciled as dead letters', async () => {
    const { operator, fixture, reconciler } = setup()
    await lostPayment(fixture)
    await reconciler().runOnce()
    expect(await operator.deadLetters()).toEqual({ records: [], messages: [], unrelayed: [] })
    expect(await operator.list({ state: 'unknown' })).toHaveLength(1)
  })

  it('makes a dead message due again, or drops it', async () => {
    const { operator, fixture, store } = setup()
    const [first, second] = [await deadMessage(fixture), await deadMessage(fixture)]
    const { messages } = await operator.deadLetters({ limit: 10 })
    expect(messages.map(({ id }) => id)).toEqual([first, second])
    expect(messages[0]!.errors).toMatchObject([{ error: 'no such address' }])
    expect(await operator.retryMessage(first, BY)).toMatchObject({ kind: 'done', subject: first })
    expect(await operator.dropMessage(second, BY)).toMatchObject({ kind: 'done', subject: second })
    expect((await store.durable.outbox.read(first))!.state).toBe('ready')
    expect((await store.durable.outbox.read(second))!.state).toBe('dropped')
    expect((await operator.deadLetters()).messages).toEqual([])
  })
})

describe('the audit', () => {
  it('writes an audit entry with name and reason for every act', async () => {
    const { operator, fixture, heard, engine, clock } = setup()
    const by = (why: string): Actor => ({ who: 'ada', why })
    const [one, two, three] = [
      await lostPayment(fixture, 'one'),
      await lostPayment(fixture, 'two'),
      await lostPlain(fixture, 'three'),
    ]
    const [retried, dropped] = [await deadMessage(fixture), await deadMessage(fixture)]
    const scope = { tenant: 'acme', operation: 'echo' }
    const done = await engine.run({ scope, key: 'k', fingerprint: 'f' }, () => bytes('x'))
    await operator.processNow({ recordId: one.recordId }, by('a'))
    const finding = { kind: 'not_executed' } as const
    await operator.resolve({ recordId: one.recordId }, finding, by('b'))
    await operator.release({ recordId: two.recordId }, by('c'))
    await operator.resolve({ recordId: three.recordId }, { kind: 'failed_retryable' }, by('d'))
    await operator.discardReply({ scope, key: 'k' }, by('e'), { despiteEffects: true })
    await operator.retryMessage(retried, by('f'))
    await operator.dropMessage(dropped, by('g'))

    const entries = (await operator.audit()).toReversed()
    expect(entries.map(({ act, subject, why }) => [act, subject, why])).toEqual([
      ['requeue', one.recordId, 'a'],
      ['conclude', one.recordId, 'b'],
      ['release', two.recordId, 'c'],
      ['resolve', three.recordId, 'd'],
      ['discard_reply', done.recordId, 'e'],
      ['retry_message', retried, 'f'],
      ['drop_message', dropped, 'g'],
    ])
    for (const { who, at } of entries) expect([who, at.getTime()]).toEqual(['ada', clock.nowMs()])
    expect(heard('operator_acted').map(({ act, subject, who }) => [act, subject, who])).toEqual(
      entries.map(({ act, subject }) => [act, subject, 'ada']),
    )
    const [discarded] = await operator.audit({ subject: done.recordId })
    expect(JSON.parse(discarded!.detail)).toMatchObject({ from: 'completed' })
    expect(await operator.audit({ limit: 2 })).toHaveLength(2)
  })

  it('writes no audit entry for an act that changed nothing', async () => {
    const { operator, engine, heard, fixture } = setup()
    const scope = { tenant: 'acme', operation: 'echo' }
    const { recordId } = await engine.run({ scope, key: 'k', fingerprint: 'f' }, () => bytes('x'))
    const message = await deadMessage(fixture)
    const unknown = newRecordId(0)
    const outcomes = [
      await operator.release({ recordId }, BY),
      await operator.processNow({ recordId }, BY),
      await operator.resolve({ recordId }, { kind: 'failed_retryable' }, BY),
      await operator.resolve({ recordId }, { kind: 'not_executed' }, BY),
      await operator.discardReply({ recordId: unknown }, BY),
      await operator.discardReply({ scope, key: 'another' }, BY),
      await operator.release({ recordId: unknown }, BY),
      await operator.retryMessage(unknown, BY),
      await operator.dropMessage(unknown, BY),
    ]
    expect(outcomes.map(({ kind }) => kind)).toEqual([
      'refused',
      'refused',
      'refused',
      'refused',
      'not_found',
      'not_found',
      'not_found',
      'not_found',
      'not_found',
    ])
    expect(await operator.audit()).toEqual([])
    await operator.dropMessage(message, BY)
    await operator.dropMessage(message, BY)
    expect(await operator.audit()).toHaveLength(1)
    expect(heard('operator_acted')).toHaveLength(1)
  })

  it('rejects unknown filters of list, deadLetters and audit', async () => {
    const { operator } = setup()
    const filter = { state: 'unknown', tenant: 'a' } as never
    await expect(operator.list(filter)).rejects.toThrow('operator.list has no option "tenant"')
    const letters = operator.deadLetters({ tenant: 'a' } as never)
    await expect(letters).rejects.toThrow('operator.deadLetters has no option "tenant"')
    const audit = operator.audit({ tenant: 'a' } as never)
    await expect(audit).rejects.toThrow('operator.audit has no option "tenant"')
  })

  it.each([
    [undefined, /by takes an options object/],
    [{ who: 'ada' }, /why must be a non-empty string/],
    [{ who: '', why: 'x' }, /who must be a non-empty string/],
    [{ who: 'ada', why: '   ' }, /why must be a non-empty string/],
    [{ who: 'ada', why: 'x'.repeat(2001) }, /at most 2000/],
    [{ who: 'a\0', why: 'x' }, /without NUL/],
    [{ who: 'ada', why: 'x', when: 'now' }, /has no option "when"/],
  ])('rejects an act by %j and changes nothing', async (by, message) => {
    const { operator, fixture, record } = setup()
    const { recordId, downstreamKey } = await lostPayment(fixture)
    const given = by as Actor
    const calls = [
      () => operator.release({ recordId }, given),
      () => operator.processNow({ recordId }, given),
      () => operator.discardReply({ recordId }, given),
      () => operator.resolve({ recordId }, { kind: 'failed_retryable' }, given),
      () => operator.resolve({ downstreamKey }, { kind: 'not_executed' }, given),
      () => operator.retryMessage('m', given),
      () => operator.dropMessage('m', given),
    ]
    for (const call of calls) await expect(call()).rejects.toThrow(message)
    expect((await record()).state).toBe('unknown')
    expect(await operator.audit()).toEqual([])
  })
})

describe('inspect', () => {
  it('shows a record with its operation, its phases and its audit', async () => {
    const { operator, fixture } = setup()
    const { recordId, downstreamKey } = await lostPayment(fixture)
    await operator.processNow({ recordId }, BY)
    const scope = { tenant: 'acme', operation: 'pay' }
    for (const target of [{ recordId }, { scope, key: 'k' }]) {
      expect(await operator.inspect(target)).toMatchObject({
        kind: 'found',
        record: { recordId, state: 'unknown' },
        operation: {
          name: 'pay',
          version: 1,
          input: { amount: 5 },
          phases: [{ name: 'charge', state: 'intended', request: { amount: 5 }, downstreamKey }],
        },
        history: [],
        audit: [{ act: 'requeue', ...BY }],
      })
    }
  })

  it('shows the history, the discarded replies and the audit of a removed record', async () => {
    const { operator, engine, clock } = setup({ storeOptions: { history: true } })
    const scope = { tenant: 'acme', operation: 'echo' }
    const request = { scope, key: 'k', fingerprint: 'f' }
    const { recordId } = await engine.run(request, () => bytes('wrong'))
    await operator.discardReply({ recordId }, BY, { despiteEffects: true })
    await engine.run(request, () => bytes('right'))
    clock.advance(DAY_MS)
    await engine.reap()
    expect(await operator.inspect({ recordId })).toMatchObject({
      kind: 'found',
      record: undefined,
      history: [{ recordId, result: bytes('right') }],
      discarded: [{ attempt: 1, result: bytes('wrong'), operation: undefined }],
      audit: [{ act: 'discard_reply' }],
    })
  })

  it('returns not_found for a record that never existed', async () => {
    const { operator } = setup()
    const unknown = { recordId: newRecordId(0) }
    expect(await operator.inspect(unknown)).toEqual({ kind: 'not_found' })
  })
})

describe('arguments of an operator', () => {
  it.each([{}, { recordId: '' }, { recordId: 7 }, { scope: { tenant: 'a' }, key: 'k' }, undefined])(
    'rejects the target %j',
    async (target) => {
      const { operator } = setup()
      await expect(operator.release(target as never, BY)).rejects.toThrow(/target must be/)
      await expect(operator.inspect(target as never)).rejects.toThrow(/target must be/)
    },
  )

  it.each([null, '2', 1.5])('rejects the attempt %j', async (attempt) => {
    const { operator } = setup()
    const target = { recordId: 'r', attempt } as never
    const verdict = { kind: 'failed_retryable' } as const
    await expect(operator.resolve(target, verdict, BY)).rejects.toThrow(/attempt must be/)
    const call = operator.resolve(target, { kind: 'not_executed' }, BY)
    await expect(call).rejects.toThrow(/attempt must be/)
  })

  it('refuses acts that a store without an audit cannot record', async () => {
    const operator = createOperator({ engine: createEngine({ store: memoryStore() }) })
    const refused = /keeps no operations/
    await expect(operator.release({ recordId: 'r' }, BY)).rejects.toThrow(refused)
    await expect(operator.audit()).rejects.toThrow(refused)
    await expect(operator.deadLetters()).rejects.toThrow(refused)
    await expect(operator.retryMessage('m', BY)).rejects.toThrow(refused)
    const verdict = { kind: 'not_executed' } as const
    await expect(operator.resolve({ recordId: 'r' }, verdict, BY)).rejects.toThrow(refused)
    expect(await operator.list({ state: 'unknown' })).toEqual([])
    expect(await operator.inspect({ recordId: 'r' })).toEqual({ kind: 'not_found' })
  })
})
