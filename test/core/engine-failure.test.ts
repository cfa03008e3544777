import { describe, expect, it } from 'vitest'
import type { EngineOptions } from '../../src/core/engine.ts'
import { NotExecutedError, OutcomeUnknownError } from '../../src/core/errors.ts'
import type { Work, WorkEnd } from '../../src/core/execution.ts'
import type { Failure, FailureChoice } from '../../src/core/failure.ts'
import { bytes, engineFixture } from './engine-fixture.ts'

const throwing =
  (error: unknown): Work =>
  () => {
    throw error
  }

const failing =
  (error: unknown, blind?: boolean): Work =>
  () => {
    const end = { kind: 'fail', result: bytes('failed'), error } as const
    return blind === undefined ? end : { ...end, blind }
  }

const reset = (): Error => Object.assign(new Error('socket'), { code: 'ECONNRESET' })

async function thrownBy(options: Partial<EngineOptions>, work: Work) {
  const fixture = engineFixture(options)
  const error = await fixture.run(work).then(
    () => expect.fail('it should have thrown'),
    (reason: unknown) => reason,
  )
  expect(fixture.clock.pendingTimers).toBe(0)
  return { ...fixture, error, record: await fixture.record() }
}

describe('work that throws', () => {
  it('frees its key, and its error is thrown on', async () => {
    const declined = Object.assign(new Error('card declined'), { code: 'declined' })
    const { error, record, run, kinds } = await thrownBy({}, throwing(declined))
    expect(error).toBe(declined)
    expect(record).toMatchObject({
      state: 'failed_retryable',
      proof: 'declared',
      errorCode: 'declined',
    })
    expect(await run(() => bytes('ok'))).toMatchObject({ kind: 'ran' })
    expect(kinds()).toEqual(['reserve_created', 'reserve_failed_retry'])
  })

  it.each([
    ['NotExecutedError', {}, throwing(new NotExecutedError()), 'proven'],
    [
      'NotExecutedError against the route',
      { onError: 'unknown' },
      throwing(new NotExecutedError()),
      'proven',
    ],
    ['an ordinary error, and retry', { onError: 'retry' }, throwing(reset()), 'declared'],
    [
      'an ordinary error, and store: no bytes to store',
      { onError: 'store' },
      throwing(new Error('x')),
      'declared',
    ],
    ['a value', {}, throwing('no error at all'), 'declared'],
    ['undefined', {}, throwing(undefined), 'declared'],
  ] as const)('may be run again after %s', async (_, options, work, proof) => {
    const { record } = await thrownBy(options, work)
    expect(record).toMatchObject({ state: 'failed_retryable', proof })
  })

  it.each([
    ['OutcomeUnknownError', {}, throwing(new OutcomeUnknownError())],
    [
      'OutcomeUnknownError against the route',
      { onError: 'retry' },
      throwing(new OutcomeUnknownError()),
    ],
    ['a lost call', {}, throwing(reset())],
    ['a lost call, and store', { onError: 'store' }, throwing(reset())],
    ['any error, and unknown', { onError: 'unknown' }, throwing(new Error('x'))],
    [
      'an error after an effect was begun',
      {},
      (context) => {
        context.downstreamKey()
        throw new Error('x')
      },
    ],
    [
      'its own word',
      {},
      (context) => {
        context.outcomeUnknown()
        throw new NotExecutedError()
      },
    ],
  ] as [string, Partial<EngineOptions>, Work][])(
    'leaves its outcome unknown after %s',
    async (_, options, work) => {
      const { record, run, kinds } = await thrownBy(options, work)
      expect(record?.state).toBe('unknown')
      expect(await run(() => bytes('never'))).toMatchObject({ kind: 'unknown', retryAfterMs: 0 })
      expect(kinds()).toEqual(['reserve_created', 'reconcile_scheduled', 'reserve_unknown'])
    },
  )

  it('is proven not to have run where it says so, even after an effect was prepared', async () => {
    const { record } = await thrownBy({ onError: 'unknown' }, (context) => {
      context.downstreamKey()
      context.notExecuted()
      throw reset()
    })
    expect(record).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
  })
})

describe('work that fails with bytes to show', () => {
  it.each([
    ['auto', failing(new Error('x')), 'released', 'failed_retryable'],
    ['auto', failing(reset()), 'doubted', 'unknown'],
    ['auto', failing(undefined, true), 'doubted', 'unknown'],
    ['auto', failing(undefined, false), 'released', 'failed_retryable'],
    ['retry', failing(reset(), true), 'released', 'failed_retryable'],
    ['store', failing(reset()), 'ran', 'completed'],
    ['unknown', failing(new Error('x')), 'doubted', 'unknown'],
  ] as const)('under %s: case %#', async (onError, work, kind, state) => {
    const fixture = engineFixture({ onError })
    const outcome = await fixture.run(work)
    expect(outcome).toMatchObject({ kind, result: bytes('failed') })
    expect(await fixture.state()).toBe(state)
    expect(fixture.clock.pendingTimers).toBe(0)
  })

  it('is replayed where its failure is the result', async () => {
    const { run } = engineFixture({ onError: 'store' })
    await run(failing(new Error('x')))
    expect(await run(() => bytes('never'))).toMatchObject({
      kind: 'replayed',
      result: bytes('failed'),
    })
  })

  it('may end without an effect and without a lasting answer', async () => {
    const { run, record } = engineFixture({ onError: 'unknown' })
    const outcome = await run(() => ({ kind: 'release', result: bytes('try later') }))
    expect(outcome).toMatchObject({
      kind: 'released',
      proof: 'declared',
      result: bytes('try later'),
    })
    expect(await record()).toMatchObject({ state: 'failed_retryable' })
  })
})

describe('an onError function', () => {
  it('decides, knowing what is known', async () => {
    const told: Failure[] = []
    const error = new Error('x')
    const fixture = engineFixture({
      onError: (failure) => {
        told.push(failure)
        return 'unknown'
      },
    })
    await fixture.run((context) => {
      context.downstreamKey()
      return failing(error)(context)
    })
    const effect = { effectBegun: true, rolledBack: false }
    expect(told).toEqual([{ error, blind: false, attempt: 1, ...effect }])
    expect(await fixture.state()).toBe('unknown')
  })

  const bugs: [string, () => FailureChoice][] = [
    ['answers nonsense', () => 'whatever' as FailureChoice],
    ['answers a promise', () => Promise.resolve('retry') as unknown as FailureChoice],
    [
      'throws',
      () => {
        throw new Error('a bug in the policy')
      },
    ],
  ]

  it.each(bugs)(
    'that %s frees no key, and the work’s own error is thrown on',
    async (_, onError) => {
      const { error, record } = await thrownBy({ onError }, throwing(new Error('the work’s own')))
      expect(error).toMatchObject({ message: 'the work’s own' })
      expect(record?.state).toBe('unknown')
    },
  )

  it.each(bugs)('that %s frees no key, and the bytes of the work are given', async (_, onError) => {
    const { run, state } = engineFixture({ onError })
    expect(await run(failing(new Error('x')))).toMatchObject({ kind: 'doubted' })
    expect(await state()).toBe('unknown')
  })
})

describe('work that ends with something else than bytes', () => {
  it.each([
    ['nothing', undefined],
    ['null', null],
    ['a text', 'done'],
    ['an object', { status: 200 }],
    ['an unknown kind', { kind: 'done', result: bytes('x') }],
    ['a text as its result', { kind: 'complete', result: 'x' }],
    ['no result', { kind: 'release' }],
  ])('%s: it is told so, and may not run again', async (_, end) => {
    const { error, record } = await thrownBy({}, () => end as unknown as WorkEnd)
    expect(error).toMatchObject({ code: 'INVALID_OPTIONS' })
    expect(String(error)).toContain('the work must return a Uint8Array')
    expect(record).toMatchObject({ state: 'unknown', errorCode: 'no_result' })
  })
})
