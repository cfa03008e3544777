import { describe, expect, it } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import { operation, operationPolicy, type Operation } from '../../src/durable/index.ts'
import type { OperationContext } from '../../src/durable/operation-contract.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { askable, durableFixture, payment } from './durable-fixture.ts'

/** The first attempt runs one list of phases and fails, the second another. */
async function changed(
  before: (op: OperationContext) => Promise<unknown>,
  after: (op: OperationContext) => Promise<unknown>,
) {
  const fixture = durableFixture()
  let isFirst = true
  const pay = operation({
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

describe('phases that are not those on record', () => {
  it('are refused where a name has changed, with what to do about it', async () => {
    const { again } = await changed(one, two)
    await expect(again()).rejects.toMatchObject({
      code: 'OPERATION_CHANGED',
      message: expect.stringMatching(/"one".*new version/s) as string,
    })
  })

  it('are refused where a kind has changed', async () => {
    const { again } = await changed(one, (op) => op.external('one', undefined))
    await expect(again()).rejects.toMatchObject({ code: 'OPERATION_CHANGED' })
  })

  it('are refused where one is missing at the end', async () => {
    const { again, record, pay } = await changed(
      async (op) => {
        await one(op)
        await two(op)
      },
      (op) => one(op),
    )
    await expect(again()).rejects.toThrow(/has done phase "two"/)
    expect(await record(pay)).toMatchObject({ state: 'failed_retryable', recoveryPoint: 'two' })
  })

  it('may go on where they went on before', async () => {
    const { again } = await changed(one, async (op) => {
      await one(op)
      await two(op)
    })
    expect(await again()).toMatchObject({ kind: 'ran' })
  })
})

it('leaves what began under another version to those who have that one', async () => {
  const { run, record, provider } = durableFixture()
  provider.faults.push('error before effect')
  const effect = { ...askable(provider), repeatable: { withinMs: 100_000 } }
  await expect(run(payment(effect), { amount: 1 })).rejects.toThrow('socket hang up')
  const newer = payment(effect, { version: 2 })
  await expect(run(newer, { amount: 1 })).rejects.toMatchObject({
    code: 'OPERATION_CHANGED',
    message: expect.stringMatching(/began as "payments.create" version 1/) as string,
  })
  expect((await record(newer)).state).toBe('failed_retryable')
  expect(await run(payment(effect), { amount: 1 })).toMatchObject({ kind: 'ran', status: 201 })
})

describe('misuse of phases is refused, and nothing follows on it', () => {
  const misuses: readonly [string, RegExp, (op: OperationContext) => Promise<unknown>][] = [
    [
      'two at the same time',
      /began while "one" was under way/,
      (op) => Promise.all([op.transaction('one', async () => null), two(op)]),
    ],
    [
      'two of one name',
      /two phases are called "one"/,
      async (op) => {
        await one(op)
        await one(op)
      },
    ],
    ['one without a name', /needs a name/, (op) => op.transaction('', () => null)],
    ['a name that is too long', /needs a name/, (op) => op.transaction('x'.repeat(65), () => 1)],
    ['an effect that was not declared', /no effect "pay"/, (op) => op.external('pay', {})],
    ['one from a prototype', /no effect "toString"/, (op) => op.external('toString', {})],
    ['a result that JSON cannot say', /cannot be stored/, (op) => op.transaction('x', () => 1n)],
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
      'one after the last',
      /comes after the last one/,
      async (op) => {
        await op.finish('last', () => ({ status: 200, body: {} }))
        await one(op)
      },
    ],
  ]
  it.each(misuses)('%s', async (_name, message, misuse) => {
    const { run } = durableFixture()
    const pay = operation({
      name: 'pay',
      effects: { ask: { send: () => 1 } },
      async run(op) {
        await misuse(op as unknown as OperationContext)
        return { status: 200, body: {} }
      },
    })
    const ended = run(pay, undefined)
    if (_name === 'one after the last') {
      // The key is completed: the client has its answer, and the code has its bug.
      await expect(ended).rejects.toThrow(message)
      expect(await run(pay, undefined)).toMatchObject({ kind: 'replayed', status: 200 })
    } else {
      await expect(ended).rejects.toThrow(message)
    }
  })

  it('also where the operation swallows the error of a phase', async () => {
    const { run, record } = durableFixture()
    const pay = operation({
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

  it('also where the operation returns while a phase is under way', async () => {
    const { run, record } = durableFixture()
    const pay = operation({
      name: 'pay',
      async run(op) {
        void op.transaction('one', async () => null).catch(() => undefined)
        return { status: 200, body: {} }
      },
    })
    await expect(run(pay, undefined)).rejects.toThrow(/ended while phase "one" was under way/)
    expect((await record(pay)).state).toBe('failed_retryable')
  })
})

describe('an operation that cannot run says why', () => {
  const policyOf = (engine: ReturnType<typeof createEngine>) => operationPolicy(engine)
  const scope = { tenant: 'acme', operation: 'pay' }
  const idle: Operation<undefined> = operation({
    name: 'pay',
    run: async (op) => op.finish('one', () => ({ status: 200 })),
  })

  it('on a store without transactions', async () => {
    const engine = createEngine({ store: memoryStore(), sweepEveryMs: 0, reapEveryMs: 0 })
    const request = { scope, key: 'k', fingerprint: 'f', policy: policyOf(engine) }
    await expect(engine.run(request, idle.work(undefined))).rejects.toThrow(
      /the memory store keeps no operations/,
    )
  })

  it('under a policy that would not go on with it', async () => {
    const { engine } = durableFixture()
    const request = { scope, key: 'k', fingerprint: 'f' }
    await expect(engine.run(request, idle.work(undefined))).rejects.toThrow(/operation\.route/)
  })

  it('without the context of a held key', async () => {
    await expect(idle.run({} as never, undefined)).rejects.toThrow(/needs the context/)
  })

  it('a second time under one attempt', async () => {
    const { engine } = durableFixture()
    const request = { scope, key: 'k', fingerprint: 'f', policy: policyOf(engine) }
    const twice = engine.run(request, async (context) => {
      await idle.run(context, undefined)
      await idle.run(context, undefined)
      return new Uint8Array(0)
    })
    await expect(twice).rejects.toThrow(/has committed its result already/)
  })

  it('beside a transaction of its handler', async () => {
    const { engine } = durableFixture()
    const request = { scope, key: 'k', fingerprint: 'f', policy: policyOf(engine) }
    const waits: Operation<undefined> = operation({
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

describe('a key whose operation was begun', () => {
  async function begun() {
    const fixture = durableFixture()
    const pay = operation({
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

  it('is no key for work that knows nothing of it: that would do it from the start', async () => {
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

  it('is not even where it cannot be given back at once', async () => {
    const { engine, request, store, clock } = await begun()
    store.settle = () => Promise.reject(new Error('the database is gone'))
    const plain = engine.run(request, () => new Uint8Array(0)).catch((error: unknown) => error)
    for (let n = 0; n < 10; n++) await clock.advanceAsync(1_000)
    expect(await plain).toMatchObject({ code: 'OPERATION_CHANGED' })
  })

  it('is not completed by what its handler returns instead', async () => {
    const { engine, pay, record, request } = await begun()
    const policy = operationPolicy(engine)
    const outcome = await engine.run({ ...request, policy }, () => new Uint8Array([1]))
    expect(outcome).toMatchObject({ kind: 'released', proof: 'proven' })
    expect(await record(pay)).toMatchObject(IS_LEFT)
  })

  it('is not completed by a transaction of its handler', async () => {
    const { engine, pay, record, request } = await begun()
    const policy = operationPolicy(engine)
    const ended = engine.run({ ...request, policy }, (context) =>
      context.transaction(() => new Uint8Array([1])),
    )
    await expect(ended).rejects.toThrow(/only its own phases can complete it/)
    expect(await record(pay)).toMatchObject(IS_LEFT)
  })

  it('is unknown where its handler says so', async () => {
    const { engine, pay, record, request } = await begun()
    const policy = operationPolicy(engine)
    await engine.run({ ...request, policy }, (context) => {
      context.outcomeUnknown()
      return new Uint8Array([1])
    })
    expect((await record(pay)).state).toBe('unknown')
  })
})

describe('wrong options are refused by name', () => {
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
      'provenAfterMs without reconcile',
      { effects: { a: { send() {}, provenAfterMs: 5 } } },
      /provenAfterMs is about/,
    ],
    ['a schema that is none', { input: { parse() {} } }, /input must be a Standard Schema/],
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
    ['repeatable without a time', { effects: { a: { send() {}, repeatable: {} } } }, /withinMs/],
  ]
  it.each(wrong)('%s', (_name, options, message) => {
    const base = { name: 'pay', run: () => ({ status: 200 }) }
    expect(() => operation({ ...base, ...options })).toThrow(message)
  })
})
