import { expect, it } from 'vitest'
import { StoreFailedError } from '../../../src/core/errors.ts'
import { NoAnswerError } from '../../../src/core/health/store-advice.ts'

const failed = (cause: unknown, advice?: string) =>
  new StoreFailedError({ store: 'postgres', operation: 'claim', cause, advice })

it('gives advice on a network error at any depth of the cause chain', () => {
  const reset = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
  const { advice, message } = failed(new Error('query failed', { cause: reset }))
  expect(advice).toMatch(/^check whether the server, or a proxy before it, restarts/)
  expect(message).toBe(`postgres store failed to claim (unavailable): query failed (${advice})`)
})

it('gives advice on a store that does not answer', () => {
  expect(failed(new NoAnswerError(5_000)).advice).toContain('the server is up and reachable')
})

it('prefers the advice of the store', () => {
  expect(failed(new NoAnswerError(5_000), 'do this').advice).toBe('do this')
})

it('gives no advice on unknown errors', () => {
  const { advice, message } = failed(new Error('odd'))
  expect(advice).toBeUndefined()
  expect(message).toBe('postgres store failed to claim (unavailable): odd')
})

// Node throws this for a host name with several addresses.
it('names the first of several refused connections', () => {
  const each = ['::1', '127.0.0.1'].map((host) => new Error(`connect ECONNREFUSED ${host}:5432`))
  const all = Object.assign(new AggregateError(each), { code: 'ECONNREFUSED' })
  expect(failed(all).message).toContain('connect ECONNREFUSED ::1:5432 (check that the server')
})
