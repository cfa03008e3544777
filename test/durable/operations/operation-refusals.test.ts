import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { defineOperation, operationPolicy, type Operation } from '../../../src/durable/index.ts'
import type { OperationContext } from '../../../src/durable/operations/operation-contract.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { askable, durableFixture, payment } from './durable-fixture.ts'

/** The first attempt runs one list of phases and fails, the second attempt runs another list. */
async function changed(
  before: (op: OperationContext) => Promise<unknown>,
  after: (op: OperationContext) => Promise<unknown>,
) {
  const fixture = durableFixture()
  let isFirst = true
  const pay = defineOperation({
    name: 'pay',
    effects: { ask: { send: () => 1 } },
    async run(op) {
      const untyped = op as unknown as OperationContext
      await (isFirst ? before(untyped) : after(untyped))
      if (isFirst) {
        isFirst = false
        throw new Error('deployed')
      }
      return { status: 200, body: {} }
    },
  })
  await expect(fixture.run(pay, undefined)).rejects.toThrow('deployed')
  return { ...fixture, pay, again: () => fixture.run(pay, undefined) }
}

const one = (op: OperationContext) => op.transaction('one', () => null)
const two = (op: OperationContext) => op.transaction('two', () => null)

describe('phases that differ from those on record', () => {
  it('rejects a phase whose name has changed, and says what to do', async () => {
    const { again } = await changed(one, two)
    await expect(again()).rejects.toMatchObject({
      code: 'OPERATION_CHANGED',
      message: expect.stringMatching(/"one".*new version/s) as string,
    })
  })

  it('rejects a phase whose kind has changed', async () => {
    const { again } = await changed(one, (op) => op.external('one', undefined))
    await expect(again()).rejects.toMatchObject({ code: 'OPERATION_CHANGED' })
  })

  it('rejects an operation that ends without a recorded phase', async () => {
    const { again, record, pay } = await changed(
      async (op) => {
        await one(op)
        await two(op)
      },
      (op) => one(op),
    )
    await expect(again()).rejects.toThrow(/phase "two" is on record/)
    expect(await record(pay)).toMatchObject({ state: 'failed_retryable', recoveryPoint: 'two' })
  })

  it('accepts new phases after those on record', async () => {
    const { again } = await changed(one, async (op) => {
      await one(op)
      await two(op)
    })
    expect(await again()).toMatchObject({ kind: 'ran' })
  })
})

it('does not resume an operation that began with another version', async () => {
  const { run, record, provider } = durableFixture()
  provider.faults.push('error before effect')
  const effect = { ...askable(provider), resendWithinMs: 100_000 }
  await expect(run(payment(effect), { amount: 1 })).rejects.toThrow('socket hang up')
  const newer = payment(effect, { version: 2 })
  await expect(run(newer, { amount: 1 })).rejects.toMatchObject({
    code: 'OPERATION_CHANGED',
    message: expect.stringMatching(/began as "payments.create" version 1/) as string,
  })
  expect((await record(newer)).state).toBe('failed_retryable')
  expect(await run(payment(effect), { amount: 1 })).toMatchObject({ kind: 'ran', status: 201 })
})

describe('misuse of phases', () => {
  const misuses: readonly [string, RegExp, (op: OperationContext) => Promise<unknown>][] = [
    [
      'two phases at the same time',
      /began while "one" was running/,
      (op) => Promise.all([op.transaction('one', async () => null), two(op)]),
    ],
    [
      'two phases with the same name',
      /two phases have the name "one"/,
      async (op) => {
        await one(op)
        await one(op)
      },
    ],
    ['a phase without a name', /needs a name/, (op) => op.transaction('', () => null)],
    [
      'a phase name that is too long',
      /needs a name/,
      (op) => op.transaction('x'.repeat(65), () => 1),
    ],
    ['an undeclared effect', /no effect "pay"/, (op) => op.external('pay', {})],
    [
      'an effect name from a prototype',
      /no effect "toString"/,
      (op) => op.external('toString', {}),
    ],
    ['a result without a JSON form', /cannot be stored/, (op) => op.transaction('x', () => 1n)],
    [
      'a result that is too large',
      /1048578 bytes; at most/,
      (op) => op.transaction('x', () => 'x'.repeat(1024 * 1024)),
    ],
    [
      'a request that is too large',
      /the request of "ask" has/,
      (op) => op.external('ask', 'x'.repeat(1024 * 1024)),
    ],
    [
      'a phase after finish',
      /comes after finish\(\)/,
      async (op) => {
        await op.finish('last', () => ({ status: 200, body: {} }))
        await one(op)
      },
    ],
  ]
  it.each(misuses)('rejects %s', async (_name, message, misuse) => {
    const { run } = durableFixture()
    const pay = defineOperation({
      name: 'pay',
      effects: { ask: { send: () => 1 } },
      async run(op) {
        await misuse(op as unknown as OperationContext)
        return { status: 200, body: {} }
      },
    })
    const ended = run(pay, undefined)
    if (_name === 'a phase after finish') {
      // `finish` has completed the key, so the reply is replayed although the operation failed.
      await expect(ended).rejects.toThrow(message)
      expect(await run(pay, undefined)).toMatchObject({ kind: 'replayed', status: 200 })
    } else {
      await expect(ended).rejects.toThrow(message)
    }
  })

  it('fails an operation that swallows the error of a phase', async () => {
    const { run, record } = durableFixture()
    const pay = defineOperation({
      name: 'pay',
      async run(op) {
        await op
          .transaction('one', () => {
            throw new Error('no money')
          })
          .catch(() => undefined)
        return { status: 200, body: 'done, supposedly' }
      },
    })
    await expect(run(pay, undefined)).rejects.toThrow('no money')
    expect((await record(pay)).state).toBe('failed_retryable')
  })

  it('fails an operation that returns while a phase is running', async () => {
    const { run, record } = durableFixture()
    const pay = defineOperation({
      name: 'pay',
      async run(op) {
        void op.transaction('one', async () => null).catch(() => undefined)
        return { status: 200, body: {} }
      },
    })
    await expect(run(pay, undefined)).rejects.toThrow(/ended while phase "one" was running/)
    expect((await record(pay)).state).toBe('failed_retryable')
  })
})

describe('an operation that cannot run', () => {
  const policyOf = (engine: ReturnType<typeof createEngine>) => operationPolicy(engine)
  const scope = { tenant: 'acme', operation: 'pay' }
  const idle: Operation<undefined> = defineOperation({
    name: 'pay',
    run: async (op) => op.finish('one', () => ({ status: 200 })),
  })

  it('rejects a store without transactions', async () => {
    const engine = createEngine({ store: memoryStore(), sweepEveryMs: 0, reapEveryMs: 0 })
    const request = { scope, key: 'k', fingerprint: 'f', policy: policyOf(engine) }
    await expect(engine.run(request, idle.work(undefined))).rejects.toThrow(
      /the memory store keeps no operations/,
    )
  })

  it('rejects a policy that would not resume it', async () => {
    const { engine } = durableFixture()
    const request = { scope, key: 'k', fingerprint: 'f' }
    await expect(engine.run(request, idle.work(undefined))).rejects.toThrow(/operation\.route/)
  })

  it('rejects a call without the context of a held key', async () => {
    await expect(idle.run({} as never, undefined)).rejects.toThrow(/needs the context/)
  })

  it('rejects a second operation in one attempt', async () => {
    const { engine } = durableFixture()
    const request = { scope, key: 'k', fingerprint: 'f', policy: policyOf(engine) }
    const twice = engine.run(request, async (context) => {
      await idle.run(context, undefined)
      await idle.run(context, undefined)
      return new Uint8Array(0)
    })
    await expect(twice).rejects.toThrow(/has committed its result already/)
  })

  it('rejects an operation together with a transaction of its handler', async () => {
    const { engine } = durableFixture()
    const request = { scope, key: 'k', fingerprint: 'f', policy: policyOf(engine) }
    const waits: Operation<undefined> = defineOperation({
      name: 'pay',
      run: async (op) => {
        await op.transaction('one', () => null)
        throw new Error('later')
      },
    })
    const both = engine.run(request, async (context) => {
      await waits.run(context, undefined).catch(() => undefined)
      await context.transaction(() => new Uint8Array(0))
      return new Uint8Array(0)
    })
    await expect(both).rejects.toThrow(/use its phases/)
  })
})

describe('a key whose operation has begun', () => {
  async function begun() {
    const fixture = durableFixture()
    const pay = defineOperation({
      name: 'pay',
      async run(op) {
        await op.transaction('one', () => null)
        throw new Error('later')
      },
    })
    await expect(fixture.run(pay, undefined)).rejects.toThrow('later')
    const request = { scope: { tenant: 'acme', operation: 'pay' }, key: 'k', fingerprint: 'f' }
    return { ...fixture, pay, request }
  }
  const IS_LEFT = { state: 'failed_retryable', recoveryPoint: 'one' }

  it('does not run work that does not resume the operation of its key', async () => {
    const { engine, pay, record, request } = await begun()
    let isEntered = false
    const plain = engine.run(request, () => {
      isEntered = true
      return new Uint8Array(0)
    })
    await expect(plain).rejects.toMatchObject({
      code: 'OPERATION_CHANGED',
      message: expect.stringMatching(/was begun as an operation/) as string,
    })
    expect(isEntered).toBe(false)
    const after = await record(pay)
    expect(after).toMatchObject(IS_LEFT)
    expect(after.reconcileAt).toBeDefined()
  })

  it('does not run other work even if the key cannot be released at once', async () => {
    const { engine, request, store, clock } = await begun()
    store.settle = () => Promise.reject(new Error('the database is gone'))
    const plain = engine.run(request, () => new Uint8Array(0)).catch((error: unknown) => error)
    for (let n = 0; n < 10; n++) await clock.advanceAsync(1_000)
    expect(await plain).toMatchObject({ code: 'OPERATION_CHANGED' })
  })

  it('does not complete the key with another return value of the handler', async () => {
    const { engine, pay, record, request } = await begun()
    const policy = operationPolicy(engine)
    const outcome = await engine.run({ ...request, policy }, () => new Uint8Array([1]))
    expect(outcome).toMatchObject({ kind: 'released', proof: 'proven' })
    expect(await record(pay)).toMatchObject(IS_LEFT)
  })

  it('does not complete the key with a transaction of the handler', async () => {
    const { engine, pay, record, request } = await begun()
    const policy = operationPolicy(engine)
    const ended = engine.run({ ...request, policy }, (context) =>
      context.transaction(() => new Uint8Array([1])),
    )
    await expect(ended).rejects.toThrow(/only its own phases can complete it/)
    expect(await record(pay)).toMatchObject(IS_LEFT)
  })

  it('makes the key unknown if the handler calls outcomeUnknown()', async () => {
    const { engine, pay, record, request } = await begun()
    const policy = operationPolicy(engine)
    await engine.run({ ...request, policy }, (context) => {
      context.outcomeUnknown()
      return new Uint8Array([1])
    })
    expect((await record(pay)).state).toBe('unknown')
  })
})

describe('options of defineOperation', () => {
  const wrong: readonly [string, object, RegExp][] = [
    ['a misspelt option', { effect: {} }, /no option "effect"/],
    ['no name', { name: '' }, /operation\.name/],
    ['a version of 0', { version: 0 }, /version must be a whole number/],
    ['no run', { run: 1 }, /run must be a function/],
    ['an encryption without decrypt', { encryption: { encrypt() {} } }, /encryption must be/],
    ['a hook of an earlier release', { seal() {} }, /no option "seal"/],
    ['an effect without send', { effects: { a: {} } }, /effect "a".*send must be/],
    ['a misspelt effect option', { effects: { a: { send() {}, recocile() {} } } }, /recocile/],
    [
      'notFoundIsFinalAfterMs without reconcile',
      { effects: { a: { send() {}, notFoundIsFinalAfterMs: 5 } } },
      /notFoundIsFinalAfterMs needs reconcile/,
    ],
    ['an invalid schema', { input: { parse() {} } }, /input must be a Standard Schema/],
    [
      'a reconcile that is no function',
      { effects: { a: { send() {}, reconcile: true } } },
      /reconcile must be a function/,
    ],
    [
      'a result that is no schema',
      { effects: { a: { send() {}, result: 'text' } } },
      /effect "a".*result must be a Standard Schema/,
    ],
    ['resendWithinMs of 0', { effects: { a: { send() {}, resendWithinMs: 0 } } }, /resendWithinMs/],
  ]
  it.each(wrong)('rejects %s', (_name, options, message) => {
    const base = { name: 'pay', run: () => ({ status: 200 }) }
    expect(() => defineOperation({ ...base, ...options })).toThrow(message)
  })
})
