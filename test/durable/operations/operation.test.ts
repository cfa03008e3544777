import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Work } from '../../../src/core/attempt/run-context.ts'
import {
  createWorker,
  defineOperation,
  operationPolicy,
  type EffectCall,
} from '../../../src/durable/index.ts'
import type { OperationContext } from '../../../src/durable/operations/operation-contract.ts'
import { cachedStore, memoryCache } from '../../../src/stores/cached/index.ts'
import type { SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { askable, durableFixture, payment, replyOf } from './durable-fixture.ts'
import { entriesOf } from '../reconciliation/entries.ts'

const UNTIL_DUE_MS = 60 * 60_000

it('runs the phases of an operation once, and replays its reply', async () => {
  const { run, provider, path } = durableFixture()
  const pay = payment(askable(provider))
  const first = await run(pay, { amount: 5 })
  expect(first).toMatchObject({ kind: 'ran', status: 201, body: { status: 'succeeded' } })
  expect(await run(pay, { amount: 5 })).toEqual({ ...first, kind: 'replayed' })
  expect(provider.ledger).toHaveLength(1)
  expect(entriesOf(path)).toEqual(['recorded', 'succeeded'])
})

it('resumes after the last recorded phase, and reads earlier results from the record', async () => {
  const { run, provider, path, record } = durableFixture()
  let failures = 1
  const ids: unknown[] = []
  const pay = defineOperation({
    name: 'pay',
    effects: { charge: askable(provider) },
    async run(op, { amount }: { amount: number }) {
      const made = await op.transaction('record', (tx: SqliteTransaction) => {
        tx.exec('CREATE TABLE IF NOT EXISTS entry (id TEXT, what TEXT, amount INT)')
        tx.prepare('INSERT INTO entry VALUES (?, ?, ?)').run('1', 'recorded', amount)
        return { at: new Date(0), nothing: undefined, attempt: op.attempt }
      })
      ids.push(made)
      const charge = await op.external('charge', { amount })
      if (failures-- > 0) throw new Error('the books are closed')
      return { status: 201, body: { charge: charge.id, attempt: op.attempt } }
    },
  })
  await expect(run(pay, { amount: 5 })).rejects.toThrow('the books are closed')
  expect(await record(pay)).toMatchObject({
    state: 'failed_retryable',
    proof: 'proven',
    recoveryPoint: 'charge',
  })
  expect(await run(pay, { amount: 5 })).toMatchObject({ body: { charge: 'ch_1', attempt: 2 } })
  expect(provider.calls).toHaveLength(1)
  expect(entriesOf(path)).toEqual(['recorded'])
  // The JSON form of the value, which is the same on every attempt including the first.
  const value = { at: '1970-01-01T00:00:00.000Z', attempt: 1 }
  expect(ids).toEqual([value, value])
})

it('rolls back the writes of a failed phase, and runs it again', async () => {
  const { run, path } = durableFixture()
  let failures = 1
  const pay = defineOperation({
    name: 'pay',
    async run(op) {
      return op.finish('book', (tx: SqliteTransaction) => {
        tx.exec('CREATE TABLE IF NOT EXISTS entry (id TEXT, what TEXT, amount INT)')
        tx.exec("INSERT INTO entry VALUES ('1', 'booked', 1)")
        if (failures-- > 0) throw new Error('no')
        return { status: 200, body: {} }
      })
    },
  })
  await expect(run(pay, undefined)).rejects.toThrow('no')
  expect(entriesOf(path)).toEqual([])
  expect(await run(pay, undefined)).toMatchObject({ kind: 'ran', status: 200 })
  expect(entriesOf(path)).toEqual(['booked'])
})

it('gives a later attempt the input of the first one', async () => {
  const { run } = durableFixture()
  const seen: unknown[] = []
  let failures = 1
  const pay = defineOperation({
    name: 'pay',
    async run(op, input: unknown) {
      seen.push(input)
      await op.transaction('one', () => 1)
      if (failures-- > 0) throw new Error('no')
      return { status: 200, body: {} }
    },
  })
  await expect(run(pay, { at: new Date(0) })).rejects.toThrow('no')
  await run(pay, { at: 'something else under the same fingerprint' })
  const first = { at: '1970-01-01T00:00:00.000Z' }
  expect(seen).toEqual([first, first])
})

it('stores bytes as bytes', async () => {
  const { run } = durableFixture()
  const copy = defineOperation({
    name: 'copy',
    async run(op, input: Uint8Array) {
      const back = await op.transaction('keep', () => input)
      return { status: 200, body: { same: [...back] } }
    },
  })
  const outcome = await run(copy, new Uint8Array([0, 255, 10]))
  expect(outcome).toMatchObject({ body: { same: [0, 255, 10] } })
})

it('does not expire an operation that has begun and not ended', async () => {
  const { run, provider, clock, engine, record } = durableFixture()
  provider.faults.push('error before effect')
  const pay = payment({ ...askable(provider), resendWithinMs: 1000 * UNTIL_DUE_MS })
  await expect(run(pay, { amount: 5 })).rejects.toThrow('socket hang up')
  const { recordId } = await record(pay)
  await clock.advanceAsync(48 * UNTIL_DUE_MS)
  await engine.reap()
  expect(await run(pay, { amount: 5 })).toMatchObject({ kind: 'ran', status: 201 })
  expect(await record(pay)).toMatchObject({ recordId })
})

it('returns the same deterministicId on every attempt', async () => {
  const { run } = durableFixture()
  const ids: string[] = []
  let failures = 2
  const pay = defineOperation({
    name: 'pay',
    async run(op) {
      ids.push(op.deterministicId('payment'))
      await op.transaction('one', () => null)
      if (failures-- > 0) throw new Error('no')
      return { status: 200, body: {} }
    },
  })
  await expect(run(pay, undefined)).rejects.toThrow('no')
  await expect(run(pay, undefined)).rejects.toThrow('no')
  await run(pay, undefined)
  expect(new Set(ids).size).toBe(1)
})

it('becomes unknown for an operator after maxAttempts', async () => {
  const { run, record } = durableFixture()
  const pay = defineOperation({
    name: 'pay',
    maxAttempts: 3,
    async run(op) {
      await op.transaction('one', () => null)
      throw new Error('never works')
    },
  })
  for (let n = 0; n < 3; n++) await expect(run(pay, undefined)).rejects.toThrow('never works')
  expect(await record(pay)).toMatchObject({ state: 'unknown', errorCode: 'attempts_exhausted' })
  expect(await run(pay, undefined)).toEqual({ kind: 'unknown' })
})

it('becomes unknown after the first attempt with maxAttempts 1', async () => {
  const { run, record } = durableFixture()
  const pay = defineOperation({
    name: 'pay',
    maxAttempts: 1,
    async run(op) {
      await op.transaction('one', () => null)
      throw new Error('never works')
    },
  })
  await expect(run(pay, undefined)).rejects.toThrow('never works')
  expect(await record(pay)).toMatchObject({ state: 'unknown', errorCode: 'attempts_exhausted' })
})

it('resumes with the input on record although the schema has changed', async () => {
  const { run } = durableFixture()
  let isStrict = false
  const pay = defineOperation({
    name: 'pay',
    input: {
      '~standard': {
        version: 1,
        vendor: 'test',
        validate: (value: unknown) =>
          isStrict ? { issues: [{ message: 'must be new' }] } : { value },
      },
    },
    async run(op, input) {
      await op.transaction('one', () => null)
      if (!isStrict) throw new Error('not now')
      return { status: 200, body: input }
    },
  })
  await expect(run(pay, { a: 'old' })).rejects.toThrow('not now')
  isStrict = true
  expect(await run(pay, { a: 'new' })).toMatchObject({ kind: 'ran', body: { a: 'old' } })
})

describe('a phase that still runs when its operation ends', () => {
  const leaves: readonly [string, (op: OperationContext) => Promise<unknown>][] = [
    [
      'a return',
      async (op) => {
        void op.external('charge', { amount: 1 }).catch(() => undefined)
      },
    ],
    [
      'a second phase at the same time',
      (op) => Promise.all([op.external('charge', { amount: 1 }), op.transaction('x', () => 1)]),
    ],
  ]
  it.each(leaves)(
    'waits for a running effect after %s, and records its result',
    async (_name, leave) => {
      const { run, record, provider } = durableFixture()
      const [sent, answers] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      let isFirst = true
      const pay = defineOperation({
        name: 'pay',
        effects: {
          charge: {
            send: async ({ request, downstreamKey }: EffectCall<{ amount: number }>) => {
              sent.resolve()
              await answers.promise
              return provider.charge(request, downstreamKey)
            },
          },
        },
        async run(op) {
          if (isFirst) {
            isFirst = false
            await leave(op as unknown as OperationContext)
            return { status: 200, body: {} }
          }
          return { status: 200, body: await op.external('charge', { amount: 1 }) }
        },
      })
      const ended = run(pay, undefined).catch((error: unknown) => error)
      await sent.promise
      answers.resolve()
      expect(String(await ended)).toMatch(/was running/)
      const after = await record(pay)
      expect(after).toMatchObject({ state: 'failed_retryable', recoveryPoint: 'charge' })
      expect(await run(pay, undefined)).toMatchObject({ kind: 'ran', body: { id: 'ch_1' } })
      expect(provider.calls).toHaveLength(1)
    },
  )
})

it('runs operations in the same way behind a cache of replies', async () => {
  const { store, clock, provider, path } = durableFixture()
  const cached = cachedStore({ durable: store, cache: memoryCache(), clock })
  const engine = createEngine({ store: cached, clock, sweepEveryMs: 0, reapEveryMs: 0 })
  const pay = payment(askable(provider))
  const policy = operationPolicy(engine)
  const go = async (key: string, work: Work = pay.work({ amount: 1 })) => {
    const scope = { tenant: 'acme', operation: pay.name }
    const outcome = await engine.run({ scope, key, fingerprint: 'f', policy }, work)
    return outcome.kind === 'ran' || outcome.kind === 'replayed'
      ? { kind: outcome.kind, ...(await replyOf(outcome)) }
      : { kind: outcome.kind }
  }
  const first = await go('run')
  expect(first).toMatchObject({ kind: 'ran', status: 201 })
  for (let n = 0; n < 3; n++) expect(await go('run')).toEqual({ ...first, kind: 'replayed' })

  const accept: Work = async (context) => {
    await pay.accept(context, { amount: 2 })
    return new Uint8Array(0)
  }
  expect(await go('accept', accept)).toEqual({ kind: 'pending' })
  expect(await go('accept')).toEqual({ kind: 'pending' })
  expect(await createWorker({ engine, operations: [pay] }).runOnce()).toMatchObject({
    completed: 1,
  })
  for (let n = 0; n < 3; n++) {
    expect(await go('accept')).toMatchObject({ kind: 'replayed', status: 201 })
  }
  expect(provider.ledger).toHaveLength(2)
  expect(entriesOf(path)).toHaveLength(4)
})

it('settles the attempt after the operation has ended, even if it is not awaited', async () => {
  const { engine, record } = durableFixture()
  let goOn: () => void = () => undefined
  const waiting = new Promise<void>((resolve) => (goOn = resolve))
  const pay = defineOperation({
    name: 'pay',
    async run(op) {
      await op.transaction('one', () => null)
      await waiting
      return op.finish('two', () => ({ status: 200, body: 'from the operation' }))
    },
  })
  const policy = operationPolicy(engine)
  const request = {
    scope: { tenant: 'acme', operation: 'pay' },
    key: 'k',
    fingerprint: 'f',
    policy,
  }
  const ended = engine.run(request, async (context) => {
    void pay.run(context, undefined)
    return new Uint8Array([1])
  })
  goOn()
  const outcome = await ended
  expect(outcome.kind).toBe('ran')
  expect((await record(pay)).state).toBe('completed')
  expect(new TextDecoder().decode((await record(pay)).result)).toContain('from the operation')
})
