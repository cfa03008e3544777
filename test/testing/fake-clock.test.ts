import { describe, expect, it } from 'vitest'
import { sleep, systemClock } from '../../src/core/time/clock.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'

function setup() {
  const clock = new FakeClock()
  const fired: string[] = []
  const after = (ms: number, name: string) =>
    clock.after(ms, () => fired.push(`${name} at ${clock.monotonicMs()}`))
  return { clock, fired, after }
}

describe('FakeClock', () => {
  it('does not advance by itself, and starts at the same time in every run', () => {
    const { clock } = setup()
    expect(new Date(clock.nowMs())).toEqual(new Date('2026-01-01T00:00:00Z'))
    expect(clock.monotonicMs()).toBe(0)
    clock.advance(250)
    expect(clock.nowMs()).toBe(Date.UTC(2026, 0, 1) + 250)
    expect(clock.monotonicMs()).toBe(250)
    expect(new FakeClock(7).nowMs()).toBe(7)
  })

  it('runs timers in the order they are due, each at its due time', () => {
    const { clock, fired, after } = setup()
    after(30, 'c')
    after(10, 'a')
    after(20, 'b')
    after(31, 'later')
    after(-5, 'at once')
    clock.advance(30)
    expect(fired).toEqual(['at once at 0', 'a at 10', 'b at 20', 'c at 30'])
    expect(clock.pendingTimers).toBe(1)
  })

  it('runs timers with the same due time in the order they were set', () => {
    const { clock, fired, after } = setup()
    for (const name of ['first', 'second', 'third']) after(10, name)
    clock.advance(10)
    expect(fired).toEqual(['first at 10', 'second at 10', 'third at 10'])
  })

  it('runs timers that timers set, if they become due within the same advance', () => {
    const { clock, fired, after } = setup()
    clock.after(10, () => {
      after(5, 'in time')
      after(50, 'too late')
    })
    clock.advance(20)
    expect(fired).toEqual(['in time at 15'])
  })

  it('does not run a cancelled timer', () => {
    const { clock, fired, after } = setup()
    const cancel = after(10, 'cancelled')
    cancel()
    cancel()
    clock.advance(20)
    expect(fired).toEqual([])
    expect(clock.pendingTimers).toBe(0)
  })

  it('lets promise chains run between two timers in advanceAsync', async () => {
    const { clock } = setup()
    const steps: string[] = []
    const chain = async () => {
      await sleep(clock, 10)
      steps.push(`woke at ${clock.monotonicMs()}`)
      await sleep(clock, 10)
      steps.push(`woke at ${clock.monotonicMs()}`)
    }
    void chain()
    await clock.advanceAsync(25)
    expect(steps).toEqual(['woke at 10', 'woke at 20'])
    expect(clock.monotonicMs()).toBe(25)
  })

  it('changes the wall time without running a timer', () => {
    const { clock, fired, after } = setup()
    after(10, 'a')
    clock.jumpWallTime(3_600_000)
    expect(clock.monotonicMs()).toBe(0)
    expect(fired).toEqual([])
    clock.jumpWallTime(-7_200_000)
    clock.advance(10)
    expect(clock.nowMs()).toBe(Date.UTC(2026, 0, 1) - 3_600_000 + 10)
    expect(fired).toEqual(['a at 10'])
  })

  it('runs a soon callback before the next timer', async () => {
    const { clock, fired } = setup()
    clock.soon(() => fired.push('soon'))
    expect(fired).toEqual([])
    await clock.advanceAsync(0)
    expect(fired).toEqual(['soon'])
  })
})

describe('sleep', () => {
  it('sleep resolves after its time and leaves no timer', async () => {
    const { clock } = setup()
    const sleeping = sleep(clock, 100)
    clock.advance(100)
    await sleeping
    expect(clock.pendingTimers).toBe(0)
  })

  it('sleep ends as soon as its signal aborts, or at once if it is aborted already', async () => {
    const { clock } = setup()
    const controller = new AbortController()
    const sleeping = sleep(clock, 100, controller.signal)
    controller.abort()
    await sleeping
    await sleep(clock, 100, controller.signal)
    expect(clock.pendingTimers).toBe(0)
  })
})

describe('systemClock', () => {
  it('systemClock counts forward, runs timers, and cancels them', async () => {
    const startMs = systemClock.monotonicMs()
    const cancelled: string[] = []
    const cancel = systemClock.after(0, () => cancelled.push('cancelled'))
    cancel()
    await new Promise<void>((resolve) => {
      systemClock.after(-1, resolve, { background: false })
    })
    await new Promise<void>((resolve) => {
      systemClock.soon(resolve)
    })
    expect(cancelled).toEqual([])
    expect(systemClock.monotonicMs()).toBeGreaterThanOrEqual(startMs)
  })

  it('systemClock does not run a timer early whose delay exceeds the timer maximum', async () => {
    let fired = false
    const cancel = systemClock.after(
      2 ** 40,
      () => {
        fired = true
      },
      { background: true },
    )
    await new Promise<void>((resolve) => {
      systemClock.after(5, resolve)
    })
    cancel()
    expect(fired).toBe(false)
  })
})
