import { describe, expect, it } from 'vitest'
import { sleep, systemClock } from '../../src/core/clock.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'

function setup() {
  const clock = new FakeClock()
  const fired: string[] = []
  const after = (ms: number, name: string) =>
    clock.after(ms, () => fired.push(`${name} at ${clock.monotonicMs()}`))
  return { clock, fired, after }
}

describe('FakeClock', () => {
  it('stands still until it is moved, and starts at the same moment in every run', () => {
    const { clock } = setup()
    expect(new Date(clock.nowMs())).toEqual(new Date('2026-01-01T00:00:00Z'))
    expect(clock.monotonicMs()).toBe(0)
    clock.advance(250)
    expect(clock.nowMs()).toBe(Date.UTC(2026, 0, 1) + 250)
    expect(clock.monotonicMs()).toBe(250)
    expect(new FakeClock(7).nowMs()).toBe(7)
  })

  it('fires what falls due, in that order, each at its own moment', () => {
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

  it('fires what is due at the same time in the order it was set', () => {
    const { clock, fired, after } = setup()
    for (const name of ['first', 'second', 'third']) after(10, name)
    clock.advance(10)
    expect(fired).toEqual(['first at 10', 'second at 10', 'third at 10'])
  })

  it('fires timers that timers set, as long as they fall due on the way', () => {
    const { clock, fired, after } = setup()
    clock.after(10, () => {
      after(5, 'in time')
      after(50, 'too late')
    })
    clock.advance(20)
    expect(fired).toEqual(['in time at 15'])
  })

  it('does not fire what was cancelled', () => {
    const { clock, fired, after } = setup()
    const cancel = after(10, 'cancelled')
    cancel()
    cancel()
    clock.advance(20)
    expect(fired).toEqual([])
    expect(clock.pendingTimers).toBe(0)
  })

  it('lets promise chains run between two timers when it is moved asynchronously', async () => {
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

  it('jumps in wall time without a timer noticing', () => {
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

  it('runs what is to come soon before the next timer', async () => {
    const { clock, fired } = setup()
    clock.soon(() => fired.push('soon'))
    expect(fired).toEqual([])
    await clock.advanceAsync(0)
    expect(fired).toEqual(['soon'])
  })
})

describe('sleep', () => {
  it('ends after its time, and leaves nothing behind', async () => {
    const { clock } = setup()
    const sleeping = sleep(clock, 100)
    clock.advance(100)
    await sleeping
    expect(clock.pendingTimers).toBe(0)
  })

  it('ends as soon as its signal aborts, or at once where it has', async () => {
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
  it('counts forward, fires, and cancels', async () => {
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

  it('does not fire at once what lies further ahead than a timer can say', async () => {
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
