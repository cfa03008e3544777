import { describe, expect, it } from 'vitest'
import { retryAfterInProgress, retryAfterUnknown } from '../../../src/http/guard/answers.ts'

describe('Retry-After', () => {
  it.each([
    [0, 1],
    [1, 1],
    [1_001, 2],
    [60_000, 5],
  ])('Retry-After for %i ms of a lease is %i seconds', (leftMs, seconds) => {
    expect(retryAfterInProgress(leftMs)).toBe(seconds)
  })

  it.each([
    [1, 1],
    [30_000, 30],
    [90_000, 60],
  ])('Retry-After for %i ms to the next reconciliation is %i seconds', (leftMs, seconds) => {
    expect(retryAfterUnknown(leftMs)).toBe(seconds)
  })

  it('Retry-After is long for an outcome that waits for an operator', () => {
    expect(retryAfterUnknown(0)).toBe(60)
  })
})
