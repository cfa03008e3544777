import { describe, expect, it } from 'vitest'
import { Breaker, type BreakerState } from '../../../src/core/health/breaker.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'

function setup(breakMs = (number: number) => number * 1_000) {
  const clock = new FakeClock()
  const changes: [BreakerState, BreakerState][] = []
  const breaker = new Breaker(clock, {
    failuresMax: 3,
    breakMs,
    onChange: (from, to) => changes.push([from, to]),
  })
  const fail = (times: number) => {
    for (let n = 0; n < times; n++) breaker.failed()
  }
  return { clock, breaker, changes, fail }
}

describe('a breaker', () => {
  it('a breaker opens after three failures in a row', () => {
    const { breaker, fail } = setup()
    fail(2)
    expect(breaker.state).toBe('closed')
    breaker.succeeded()
    fail(2)
    expect(breaker.state).toBe('closed')
    fail(1)
    expect(breaker.state).toBe('open')
    expect(breaker.leftMs).toBe(1_000)
  })

  it('a breaker lets one call through in each break, even when the last one hangs', () => {
    const { breaker, clock, fail } = setup()
    fail(3)
    expect(breaker.mayTry()).toBe(false)
    clock.advance(1_000)
    expect([breaker.mayTry(), breaker.mayTry(), breaker.state]).toEqual([true, false, 'half_open'])
    clock.advance(1_000)
    expect(breaker.mayTry()).toBe(true)
  })

  it('a breaker begins a longer break when the allowed call fails', () => {
    const { breaker, clock, fail } = setup()
    fail(3)
    clock.advance(1_000)
    breaker.mayTry()
    fail(1)
    expect([breaker.state, breaker.leftMs]).toEqual(['open', 2_000])
  })

  it('a breaker is not extended by calls that were in progress when it opened', () => {
    const { breaker, clock, fail } = setup()
    fail(3)
    clock.advance(900)
    fail(5)
    expect(breaker.leftMs).toBe(100)
  })

  it('a breaker closes after a success, and counts from the start', () => {
    const { breaker, clock, fail, changes } = setup()
    fail(3)
    clock.advance(1_000)
    breaker.mayTry()
    breaker.succeeded()
    fail(2)
    expect(breaker.state).toBe('closed')
    fail(1)
    expect(breaker.leftMs).toBe(1_000)
    expect(changes).toEqual([
      ['closed', 'open'],
      ['open', 'half_open'],
      ['half_open', 'closed'],
      ['closed', 'open'],
    ])
  })

  it('a breaker that only a probe has closed reopens at the first failure, for longer', () => {
    const { breaker, clock, fail } = setup()
    fail(3)
    clock.advance(1_000)
    breaker.mayTry()
    breaker.recovered()
    expect(breaker.state).toBe('closed')
    fail(1)
    expect([breaker.state, breaker.leftMs]).toEqual(['open', 2_000])
    clock.advance(2_000)
    breaker.mayTry()
    breaker.recovered()
    breaker.succeeded()
    fail(1)
    expect(breaker.state).toBe('closed')
  })
})
