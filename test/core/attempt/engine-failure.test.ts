import { describe, expect, it } from 'vitest'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import { NotExecutedError, OutcomeUnknownError } from '../../../src/core/errors.ts'
import type { Work, WorkResult } from '../../../src/core/attempt/run-context.ts'
import type { Failure, FailureChoice } from '../../../src/core/attempt/failure.ts'
import { bytes, engineFixture } from '../engine/engine-fixture.ts'

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
    () => expect.fail('the run should have thrown'),
    (reason: unknown) => reason,
  )
  expect(fixture.clock.pendingTimers).toBe(0)
  return { ...fixture, error, record: await fixture.record() }
}

describe('work that throws', () => {
  it('frees the key of work that throws, and rethrows the error', async () => {
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
      'NotExecutedError with onError: unknown',
      { onError: 'unknown' },
      throwing(new NotExecutedError()),
      'proven',
    ],
    ['a lost call with onError: retry', { onError: 'retry' }, throwing(reset()), 'declared'],
    [
      'an ordinary error with onError: store, because it has no bytes to store',
      { onError: 'store' },
      throwing(new Error('x')),
      'declared',
    ],
    ['a thrown string', {}, throwing('no error at all'), 'declared'],
    ['a thrown undefined', {}, throwing(undefined), 'declared'],
  ] as const)('frees the key for a retry after %s', async (_, options, work, proof) => {
    const { record } = await thrownBy(options, work)
    expect(record).toMatchObject({ state: 'failed_retryable', proof })
  })

  it.each([
    ['OutcomeUnknownError', {}, throwing(new OutcomeUnknownError())],
    [
      'OutcomeUnknownError with onError: retry',
      { onError: 'retry' },
      throwing(new OutcomeUnknownError()),
    ],
    ['a lost call', {}, throwing(reset())],
    ['a lost call with onError: store', { onError: 'store' }, throwing(reset())],
    ['an ordinary error with onError: unknown', { onError: 'unknown' }, throwing(new Error('x'))],
    [
      'an error after an effect was begun',
      {},
      (context) => {
        context.downstreamKey()
        throw new Error('x')
      },
    ],
    [
      'outcomeUnknown(), even if it throws NotExecutedError',
      {},
      (context) => {
        context.outcomeUnknown()
        throw new NotExecutedError()
      },
    ],
  ] as [string, Partial<EngineOptions>, Work][])(
    'leaves the outcome unknown after %s',
    async (_, options, work) => {
      const { record, run, kinds } = await thrownBy(options, work)
      expect(record?.state).toBe('unknown')
      expect(await run(() => bytes('never'))).toMatchObject({ kind: 'unknown', retryAfterMs: 0 })
      expect(kinds()).toEqual(['reserve_created', 'reconcile_scheduled', 'reserve_unknown'])
    },
  )

  it('frees the key with proof after notExecuted(), even after downstreamKey()', async () => {
    const { record } = await thrownBy({ onError: 'unknown' }, (context) => {
      context.downstreamKey()
      context.notExecuted()
      throw reset()
    })
    expect(record).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
  })
})

describe('work that fails with a result for the caller', () => {
  it.each([
    ['auto', failing(new Error('x')), 'released', 'failed_retryable'],
    ['auto', failing(reset()), 'doubted', 'unknown'],
    ['auto', failing(undefined, true), 'doubted', 'unknown'],
    ['auto', failing(undefined, false), 'released', 'failed_retryable'],
    ['retry', failing(reset(), true), 'released', 'failed_retryable'],
    ['store', failing(reset()), 'ran', 'completed'],
    ['unknown', failing(new Error('x')), 'doubted', 'unknown'],
  ] as const)(
    'settles a failure with a result as onError: %s says (case %#)',
    async (onError, work, kind, state) => {
      const fixture = engineFixture({ onError })
      const outcome = await fixture.run(work)
      expect(outcome).toMatchObject({ kind, result: bytes('failed') })
      expect(await fixture.state()).toBe(state)
      expect(fixture.clock.pendingTimers).toBe(0)
    },
  )

  it('replays a failure to a retry with onError: store', async () => {
    const { run } = engineFixture({ onError: 'store' })
    await run(failing(new Error('x')))
    expect(await run(() => bytes('never'))).toMatchObject({
      kind: 'replayed',
      result: bytes('failed'),
    })
  })

  it('frees the key of work that returns a release, even with onError: unknown', async () => {
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
  it('calls onError with all that is known about the failure', async () => {
    const failures: Failure[] = []
    const error = new Error('x')
    const fixture = engineFixture({
      onError: (failure) => {
        failures.push(failure)
        return 'unknown'
      },
    })
    await fixture.run((context) => {
      context.downstreamKey()
      return failing(error)(context)
    })
    const effect = { effectBegun: true, rolledBack: false }
    expect(failures).toEqual([{ error, blind: false, attempt: 1, ...effect }])
    expect(await fixture.state()).toBe('unknown')
  })

  const bugs: [string, () => FailureChoice][] = [
    ['returns an unknown word', () => 'maybe' as FailureChoice],
    ['returns a promise', () => Promise.resolve('retry') as unknown as FailureChoice],
    [
      'throws',
      () => {
        throw new Error('a bug in onError')
      },
    ],
  ]

  it.each(bugs)(
    'does not free the key if onError %s, and rethrows the error of the work',
    async (_, onError) => {
      const { error, record } = await thrownBy({ onError }, throwing(new Error('of the work')))
      expect(error).toMatchObject({ message: 'of the work' })
      expect(record?.state).toBe('unknown')
    },
  )

  it.each(bugs)(
    'does not free the key if onError %s, and returns the result of the work',
    async (_, onError) => {
      const { run, state } = engineFixture({ onError })
      expect(await run(failing(new Error('x')))).toMatchObject({ kind: 'doubted' })
      expect(await state()).toBe('unknown')
    },
  )
})

describe('work that does not return bytes', () => {
  it.each([
    ['nothing', undefined],
    ['null', null],
    ['a text', 'done'],
    ['an object', { status: 200 }],
    ['an unknown kind', { kind: 'done', result: bytes('x') }],
    ['a text as its result', { kind: 'complete', result: 'x' }],
    ['no result', { kind: 'release' }],
  ])('throws if the work returns %s, and does not run it again', async (_, end) => {
    const { error, record } = await thrownBy({}, () => end as unknown as WorkResult)
    expect(error).toMatchObject({ code: 'INVALID_OPTIONS' })
    expect(String(error)).toContain('the work must return a Uint8Array')
    expect(record).toMatchObject({ state: 'unknown', errorCode: 'no_result' })
  })
})
