import { expect, it } from 'vitest'
import { StoreFailedError } from '../../src/core/errors.ts'
import { NoAnswerError } from '../../src/core/store-advice.ts'

const failed = (cause: unknown, advice?: string) =>
  new StoreFailedError({ store: 'postgres', operation: 'claim', cause, advice })

it('says what to do about an error of the network, however deep it is', () => {
  const reset = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
  const { advice, message } = failed(new Error('query failed', { cause: reset }))
  expect(advice).toMatch(/^check whether the server, or a proxy before it, restarts/)
  expect(message).toBe(`postgres store failed to claim (unavailable): query failed (${advice})`)
})

it('says what to do about a store that says nothing', () => {
  expect(failed(new NoAnswerError(5_000)).advice).toContain('the server is up and reachable')
})

it('prefers what the store says itself', () => {
  expect(failed(new NoAnswerError(5_000), 'do this').advice).toBe('do this')
})

it('has no advice on errors that it does not know', () => {
  const { advice, message } = failed(new Error('odd'))
  expect(advice).toBeUndefined()
  expect(message).toBe('postgres store failed to claim (unavailable): odd')
})

// What Node throws for a host name with several addresses.
it('names the first of several refused connections', () => {
  const each = ['::1', '127.0.0.1'].map((host) => new Error(`connect ECONNREFUSED ${host}:5432`))
  const all = Object.assign(new AggregateError(each), { code: 'ECONNREFUSED' })
  expect(failed(all).message).toContain('connect ECONNREFUSED ::1:5432 (check that the server')
})
