import { describe, expect, it } from 'vitest'
import {
  NotExecutedError,
  OutcomeUnknownError,
  StoreFailedError,
} from '../../../src/core/errors.ts'
import {
  errorCodeOf,
  judgeFailure,
  looksLikeLostCall,
  type Failure,
  type FailureChoice,
  type OnError,
} from '../../../src/core/attempt/failure.ts'

const FAILURE: Failure = {
  error: new Error('card declined'),
  blind: false,
  effectBegun: false,
  rolledBack: false,
  attempt: 1,
}

const judge = (onError: OnError, changes: Partial<Failure> = {}) =>
  judgeFailure({ ...FAILURE, ...changes }, onError)

const coded = (code: string, options?: ErrorOptions): Error =>
  Object.assign(new Error('call failed', options), { code })

const named = (name: string): Error => Object.assign(new Error('call failed'), { name })

describe('onError: auto', () => {
  it('frees the key after an ordinary error, as declared', () => {
    expect(judge('auto')).toBe('declared')
  })

  it('frees the key after a rollback, as proven', () => {
    expect(judge('auto', { rolledBack: true })).toBe('proven')
  })

  it.each([
    ['an outside effect had begun', { effectBegun: true }],
    ['an outside effect had begun beside a rollback', { effectBegun: true, rolledBack: true }],
    ['the error was not seen', { blind: true }],
    ['the error looks like a lost call', { error: coded('ECONNRESET') }],
    ['a lost call ended the transaction', { error: coded('ECONNRESET'), rolledBack: true }],
  ])('leaves the outcome unknown if %s', (_, changes) => {
    expect(judge('auto', changes)).toBe('unknown')
  })
})

describe('onError of a route', () => {
  it.each([
    ['retry', {}, 'declared'],
    ['retry', { error: coded('ECONNRESET') }, 'declared'],
    ['retry', { rolledBack: true }, 'proven'],
    ['retry', { rolledBack: true, effectBegun: true }, 'declared'],
    ['store', {}, 'store'],
    ['unknown', { rolledBack: true }, 'unknown'],
  ] as const)('judges by onError: %s a failure with %o as %s', (onError, changes, verdict) => {
    expect(judge(onError, changes)).toBe(verdict)
    expect(judge(() => onError, changes)).toBe(verdict)
  })

  it('passes all that is known about the failure to onError', () => {
    const failures: Failure[] = []
    const onError = (failure: Failure) => {
      failures.push(failure)
      return 'retry' as const
    }
    judge(onError, { effectBegun: true, attempt: 3 })
    expect(failures).toEqual([{ ...FAILURE, effectBegun: true, attempt: 3 }])
  })

  it('does not free the key if onError returns another value', () => {
    for (const value of [undefined, null, true, 'auto', 'retri', Promise.resolve('retry')]) {
      expect(judge(() => value as FailureChoice)).toBe('unknown')
    }
  })

  it('does not free the key if onError throws an error or any other value', () => {
    for (const thrown of [new Error('bug'), undefined, Object.create(null), Symbol('bug')]) {
      const onError = () => {
        throw thrown
      }
      expect(judge(onError)).toBe('unknown')
    }
  })
})

describe('an error that states the outcome', () => {
  it('follows an error that states the outcome before onError', () => {
    const choices: OnError[] = ['auto', 'retry', 'store', 'unknown', () => 'store']
    for (const onError of choices) {
      const began = { effectBegun: true, blind: true }
      expect(judge(onError, { error: new NotExecutedError(), ...began })).toBe('proven')
      expect(judge(onError, { error: new OutcomeUnknownError(), rolledBack: true })).toBe('unknown')
    }
  })

  it('recognises an error of another copy of the package by its code', () => {
    expect(judge('unknown', { error: coded('NOT_EXECUTED') })).toBe('proven')
    expect(judge('retry', { error: coded('OUTCOME_UNKNOWN') })).toBe('unknown')
  })
})

describe('looksLikeLostCall', () => {
  const cause = (inner: Error): Error => new TypeError('fetch failed', { cause: inner })
  const deep = (depth: number): Error => {
    let error = coded('ECONNRESET')
    for (let level = 0; level < depth; level++)
      error = new Error(`level ${level}`, { cause: error })
    return error
  }
  const cyclic = new Error('around')
  cyclic.cause = cyclic

  it.each([
    ['a reset', coded('ECONNRESET')],
    ['a broken pipe', coded('EPIPE')],
    ['a timeout', coded('ETIMEDOUT')],
    ['undici’s headers timeout', cause(coded('UND_ERR_HEADERS_TIMEOUT'))],
    ['undici’s closed socket', cause(coded('UND_ERR_SOCKET'))],
    ['axios, cancelled', coded('ERR_CANCELED')],
    ['an abort', named('AbortError')],
    ['an aborted signal', AbortSignal.abort().reason],
    ['a timed out signal', new DOMException('The operation timed out', 'TimeoutError')],
    ['fetch failed', new TypeError('fetch failed')],
    ['a hang-up', new Error('socket hang up')],
    ['timeout of 500ms exceeded', new Error('timeout of 500ms exceeded')],
    ['request timed out', new Error('Request timed out.')],
    ['a nested reset', deep(5)],
    [
      'several calls, one of them lost',
      new AggregateError([coded('ECONNREFUSED'), coded('EPIPE')]),
    ],
    ['several calls, one lost deep down', new AggregateError([new Error('x'), deep(3)])],
  ])('takes %s for a lost call', (_, error) => {
    expect(looksLikeLostCall(error)).toBe(true)
  })

  it.each([
    ['an ordinary error', new Error('card declined')],
    ['a refused connection: it was never sent', coded('ECONNREFUSED')],
    ['fetch, refused', cause(coded('ECONNREFUSED'))],
    ['fetch, with no such host', cause(coded('ENOTFOUND'))],
    ['every address refused', Object.assign(new AggregateError([]), { code: 'ECONNREFUSED' })],
    [
      'fetch, every address refused',
      cause(Object.assign(new AggregateError([coded('ETIMEDOUT')]), { code: 'ECONNREFUSED' })),
    ],
    ['several ordinary errors', new AggregateError([new Error('a'), new Error('b')])],
    ['the store’s own timeout', storeTimeout()],
    ['a failure caused by the store', new Error('timed out', { cause: storeTimeout() })],
    ['a cause that is nested too deep', deep(20)],
    ['a cycle', cyclic],
    ['a string', 'timeout'],
    ['undefined', undefined],
  ])('does not take %s for a lost call', (_, error) => {
    expect(looksLikeLostCall(error)).toBe(false)
  })
})

function storeTimeout(): Error {
  const lost = new Error('no answer within 5000 ms: timed out')
  return new StoreFailedError({ store: 'memory', operation: 'claim', cause: lost })
}

describe('errorCodeOf', () => {
  it('returns the code or the name of an error, cut to 100 characters', () => {
    expect(errorCodeOf(coded('card_declined'))).toBe('card_declined')
    expect(errorCodeOf(new RangeError('x'))).toBe('RangeError')
    expect(errorCodeOf(Object.assign(new Error('x'), { code: 42 }))).toBe('Error')
    expect(errorCodeOf(coded('x'.repeat(500)))).toHaveLength(100)
    expect(errorCodeOf('a text with a secret')).toBe('thrown_value')
    expect(errorCodeOf(undefined)).toBeUndefined()
  })

  it('returns an error code without characters that a database rejects', () => {
    expect(errorCodeOf(coded('nul \0 in it'))).toBe('nul  in it')
    expect(errorCodeOf(coded('half \ud83d'))).toBe('half \ufffd')
    expect(errorCodeOf(coded(`${'x'.repeat(99)}😀`))).toBe(`${'x'.repeat(99)}\ufffd`)
  })
})
