import { expect, it } from 'vitest'
import { backoffMs, jittered, retry, spread } from '../../../src/core/time/retry.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'

it('doubles the pause after each failure up to the longest', () => {
  const backoff = { firstMs: 50, maxMs: 300 }
  expect([1, 2, 3, 4, 5_000].map((failures) => backoffMs(backoff, failures))).toEqual([
    50, 100, 200, 300, 300,
  ])
})

it('reaches the longest pause with a factor just above 1', () => {
  const backoff = { firstMs: 10_000, maxMs: 3_600_000, factor: 1.05 }
  expect(backoffMs(backoff, 100)).toBeCloseTo(10_000 * 1.05 ** 99)
  expect(backoffMs(backoff, 200)).toBe(3_600_000)
})

it('takes at most the given share off a pause', () => {
  expect(jittered(100, 1 / 2, () => 0)).toBe(50)
  expect(jittered(100, 1, () => 0)).toBe(0)
  expect(jittered(100, 1 / 2, () => 0.5)).toBe(75)
})

it('spreads a period by the given share to both sides', () => {
  expect([0, 0.5, 1].map((random) => spread(100, 1 / 4, () => random))).toEqual([75, 100, 125])
})

function setup(failuresMax: number) {
  const clock = new FakeClock()
  let attempts = 0
  const attempt = async () => {
    attempts++
    if (attempts <= failuresMax) throw new Error(`failure ${attempts}`)
    return attempts
  }
  return { clock, attempt, attempts: () => attempts }
}

it('repeats an attempt after the pause until it succeeds', async () => {
  const { clock, attempt, attempts } = setup(1)
  const done = retry({ clock, pauseMs: () => 10, mayRetry: () => true }, attempt)
  await clock.advanceAsync(9)
  expect(attempts()).toBe(1)
  await clock.advanceAsync(1)
  expect(await done).toBe(2)
})

it('rejects with the error when mayRetry returns false', async () => {
  const { clock, attempt } = setup(1)
  const done = retry({ clock, pauseMs: () => 10, mayRetry: () => false }, attempt)
  await expect(done).rejects.toThrow('failure 1')
})

it('makes one last attempt when the signal aborts during a pause', async () => {
  const { clock, attempt, attempts } = setup(9)
  const stopping = new AbortController()
  const { signal } = stopping
  const done = retry({ clock, pauseMs: () => 10, mayRetry: () => true, signal }, attempt)
  await clock.advanceAsync(1)
  stopping.abort()
  await expect(done).rejects.toThrow('failure 2')
  expect(attempts()).toBe(2)
})

it('shortens the last pause to the deadline', async () => {
  const { clock, attempt, attempts } = setup(9)
  const deadlineMs = clock.monotonicMs() + 5
  const options = { clock, pauseMs: () => 10, mayRetry: () => true, deadlineMs }
  const done = retry(options, attempt).catch(String)
  await clock.advanceAsync(5)
  expect(await done).toBe('Error: failure 2')
  expect(attempts()).toBe(2)
})
