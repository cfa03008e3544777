/** Steps whose answer was lost, before or after their commit. */
import { describe, expect, it } from 'vitest'
import type { Step } from '../../../src/core/store/durable-store.ts'
import { createWorker, defineOperation, operationPolicy } from '../../../src/durable/index.ts'
import { askable, durableFixture, payment } from './durable-fixture.ts'
import { entriesOf } from '../reconciliation/entries.ts'

type Which = (step: Step) => boolean

/** Loses the answers to these steps, after their commit or before they are sent. */
function losing(
  { store }: ReturnType<typeof durableFixture>,
  when: 'after' | 'before',
  { which, times }: { readonly which: Which; readonly times: number },
): void {
  const { phases } = store.durable
  const [advance, record] = [phases.advance.bind(phases), phases.record.bind(phases)]
  let left = times
  const lost = () => new Error('connection lost')
  phases.record = async (lease, step) => {
    if (!which(step) || left <= 0) return record(lease, step)
    left--
    if (when === 'after') await record(lease, step)
    throw lost()
  }
  phases.advance = async (lease, work) => {
    let isSuch = false
    const outcome = await advance(lease, async (tx) => {
      const step = await work(tx)
      isSuch = left > 0 && which(step)
      if (!isSuch) return step
      left--
      if (when === 'before') throw lost()
      return step
    })
    if (isSuch) throw lost()
    return outcome
  }
}

const isFinish: Which = ({ end }) => end?.kind === 'complete'
const isTransaction: Which = ({ phase }) => phase?.kind === 'transaction'
const isIntent: Which = ({ phase }) => phase?.kind === 'intent'
const isResult: Which = ({ phase }) => phase?.kind === 'result'

describe('the last commit', () => {
  it('finds a last commit whose answer was lost, and the client gets its reply', async () => {
    const fixture = durableFixture()
    losing(fixture, 'after', { which: isFinish, times: 1 })
    const pay = payment(askable(fixture.provider))
    const first = await fixture.run(pay, { amount: 5 })
    expect(first).toMatchObject({ status: 201 })
    expect(await fixture.run(pay, { amount: 5 })).toMatchObject({ kind: 'replayed', status: 201 })
    expect(entriesOf(fixture.path)).toEqual(['recorded', 'succeeded'])
  })

  it('makes a last commit that was not sent in the next attempt', async () => {
    const fixture = durableFixture()
    losing(fixture, 'before', { which: isFinish, times: 1 })
    const pay = payment(askable(fixture.provider))
    await expect(fixture.run(pay, { amount: 5 })).rejects.toThrow('connection lost')
    expect(await fixture.run(pay, { amount: 5 })).toMatchObject({ kind: 'ran', status: 201 })
    expect(fixture.provider.calls).toHaveLength(1)
    expect(entriesOf(fixture.path)).toEqual(['recorded', 'succeeded'])
  })

  it('finds the last commit of an operation without finish', async () => {
    const fixture = durableFixture()
    losing(fixture, 'after', { which: isFinish, times: 1 })
    const note = defineOperation({
      name: 'note',
      run: () => ({ status: 201, body: { made: true } }),
    })
    const ended = fixture.run(note, undefined)
    for (let n = 0; n < 10; n++) await fixture.clock.advanceAsync(100)
    expect(await ended).toMatchObject({ status: 201, body: { made: true } })
  })
})

describe.each(['after', 'before'] as const)('an answer that is lost %s the step', (when) => {
  it('resumes from the record after a lost answer of a transaction', async () => {
    const fixture = durableFixture()
    losing(fixture, when, { which: isTransaction, times: 1 })
    const pay = payment(askable(fixture.provider))
    await expect(fixture.run(pay, { amount: 5 })).rejects.toThrow('connection lost')
    expect(await fixture.run(pay, { amount: 5 })).toMatchObject({ kind: 'ran', status: 201 })
    expect(entriesOf(fixture.path)).toEqual(['recorded', 'succeeded'])
  })

  it.each([
    ['an intent', isIntent],
    ['a result', isResult],
  ])('repeats %s after a lost answer, and the effect happens once', async (_name, which) => {
    const fixture = durableFixture()
    losing(fixture, when, { which, times: 2 })
    const pay = payment(askable(fixture.provider))
    const ended = fixture.run(pay, { amount: 5 })
    for (let n = 0; n < 10; n++) await fixture.clock.advanceAsync(100)
    expect(await ended).toMatchObject({ kind: 'ran', status: 201 })
    expect(fixture.provider.calls).toHaveLength(1)
  })

  it('sends nothing without an answer to the intent, and calls reconcile first', async () => {
    const fixture = durableFixture()
    losing(fixture, when, { which: isIntent, times: 1_000 })
    const pay = payment(askable(fixture.provider))
    const ended = fixture.run(pay, { amount: 5 }).catch((error: unknown) => error)
    for (let n = 0; n < 20; n++) await fixture.clock.advanceAsync(500)
    expect(String(await ended)).toContain('connection lost')
    expect(fixture.provider.calls).toEqual([])
    expect((await fixture.record(pay)).state).toBe('failed_retryable')
  })

  it('replies 202 after a lost answer to accept, or lets the client retry', async () => {
    const fixture = durableFixture()
    const { engine, provider } = fixture
    losing(fixture, when, { which: ({ end }) => end?.kind === 'hand_over', times: 1_000 })
    const pay = payment(askable(provider))
    const scope = { tenant: 'acme', operation: pay.name }
    const request = { scope, key: 'k', fingerprint: 'f', policy: operationPolicy(engine) }
    const ended = engine
      .run(request, async (context) => {
        await pay.accept(context, { amount: 5 })
        return new Uint8Array(0)
      })
      .catch((error: unknown) => error)
    for (let n = 0; n < 20; n++) await fixture.clock.advanceAsync(500)
    const outcome = await ended
    if (when === 'after') expect(outcome).toMatchObject({ kind: 'pending' })
    else expect(String(outcome)).toContain('connection lost')
    await fixture.clock.advanceAsync(60_000)
    await createWorker({ engine, operations: [pay] }).runOnce()
    expect(provider.ledger).toHaveLength(when === 'after' ? 1 : 0)
  })
})

it('fails an attempt in time if the store never answers load', async () => {
  const { run, record, store, clock } = durableFixture()
  let isFirst = true
  const pay = defineOperation({
    name: 'pay',
    async run(op) {
      await op.transaction('one', () => null)
      if (!isFirst) return { status: 200, body: {} }
      isFirst = false
      throw new Error('later')
    },
  })
  await expect(run(pay, undefined)).rejects.toThrow('later')
  const { phases } = store.durable
  const load = phases.load.bind(phases)
  const asked = Promise.withResolvers<void>()
  phases.load = () => {
    asked.resolve()
    return new Promise(() => undefined)
  }
  const ended = run(pay, undefined).catch((error: unknown) => error)
  await asked.promise
  await clock.advanceAsync(5_000)
  expect(await ended).toMatchObject({ code: 'STORE_FAILED' })
  expect((await record(pay)).state).toBe('failed_retryable')
  phases.load = load
  expect(await run(pay, undefined)).toMatchObject({ kind: 'ran' })
})
