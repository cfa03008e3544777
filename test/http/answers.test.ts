import { describe, expect, it } from 'vitest'
import { retryAfterInProgress, retryAfterUnknown } from '../../src/http/answers.ts'

describe('Retry-After', () => {
  it.each([
    [0, 1],
    [1, 1],
    [1_001, 2],
    [60_000, 5],
  ])('says %i ms of a lease as %i seconds', (leftMs, seconds) => {
    expect(retryAfterInProgress(leftMs)).toBe(seconds)
  })

  it.each([
    [1, 1],
    [30_000, 30],
    [90_000, 60],
  ])('says %i ms to the next reconciliation as %i seconds', (leftMs, seconds) => {
    expect(retryAfterUnknown(leftMs)).toBe(seconds)
  })

  it('sends nobody back every second for an outcome that waits for a person', () => {
    expect(retryAfterUnknown(0)).toBe(60)
  })
})
