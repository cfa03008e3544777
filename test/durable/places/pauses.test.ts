import { expect, it } from 'vitest'
import type { EngineEvent } from '../../../src/core/events.ts'
import { pausedWork } from '../../../src/core/engine/paused-work.ts'
import { Pauses } from '../../../src/durable/places/pauses.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { simulatedStore } from '../simulated/store.ts'

const FIVE_MINUTES_MS = 300_000

function setup() {
  const clock = new FakeClock()
  const store = simulatedStore(clock)
  const events: EngineEvent[] = []
  const emit = (event: EngineEvent) => void events.push(event)
  const pauses = new Pauses({ part: 'operation', clock, store, emit, overdueMax: 2 })
  const kinds = () => events.map(({ kind }) => kind)
  /** Pauses the group `pay` with calls that never end. */
  const pause = (from: number, to: number) => {
    for (let n = from; n < to; n++) pauses.countOverdue('pay', `r${n}`)
    clock.advance(1_000)
  }
  return { clock, store, events, kinds, pauses, pause }
}

it('does not pause a group for any number of hanging calls of one record', () => {
  const { clock, pauses, events } = setup()
  for (let n = 0; n < 20; n++) pauses.countOverdue('pay', 'r1')
  clock.advance(10_000)
  expect(pauses.isPaused('pay')).toBe(false)
  expect(pauses.stats()).toEqual({ overdue: 20, paused: [] })
  // One event for the record, because each retry that hangs would repeat it.
  expect(events).toMatchObject([{ kind: 'work_overdue', subject: 'r1' }])
})

it('starts a trial of a paused group every five minutes', () => {
  const { clock, pauses, pause } = setup()
  pause(0, 2)
  expect(pauses.startTrials(['pay'])).toEqual([])
  expect(pauses.mayBegin('pay')).toBe(false)
  clock.advance(FIVE_MINUTES_MS)
  expect(pauses.startTrials(['pay', 'other'])).toEqual(['pay'])
  expect(pauses.mayBegin('pay')).toBe(true)
  pauses.begin('pay')
  expect(pauses.mayBegin('pay')).toBe(false)
  clock.advance(FIVE_MINUTES_MS - 1)
  expect(pauses.startTrials(['pay'])).toEqual([])
  clock.advance(1)
  expect(pauses.startTrials(['pay'])).toEqual(['pay'])
})

it('resumes a group after a trial that ends in time, although older calls never end', () => {
  const { clock, pauses, pause, kinds } = setup()
  pause(0, 2)
  clock.advance(FIVE_MINUTES_MS)
  pauses.startTrials(['pay'])
  pauses.begin('pay')('ran')
  expect(pauses.isPaused('pay')).toBe(false)
  expect(kinds().at(-1)).toBe('work_resumed')
  expect(pauses.stats()).toEqual({ overdue: 2, paused: [] })
  // Two more calls that hang pause the group again.
  pause(2, 3)
  expect(pauses.isPaused('pay')).toBe(false)
  pause(3, 4)
  expect(pauses.isPaused('pay')).toBe(true)
})

it('keeps a group paused after a trial that hangs', () => {
  const { clock, pauses, pause, kinds } = setup()
  pause(0, 2)
  clock.advance(FIVE_MINUTES_MS)
  pauses.startTrials(['pay'])
  const end = pauses.begin('pay')
  pauses.countOverdue('pay', 'tried')
  end('ran')
  expect(pauses.isPaused('pay')).toBe(true)
  expect(kinds()).not.toContain('work_resumed')
})

it('starts another trial soon if the work of a trial did not run', () => {
  const { clock, pauses, pause } = setup()
  pause(0, 2)
  clock.advance(FIVE_MINUTES_MS)
  expect(pauses.startTrials(['pay'])).toEqual(['pay'])
  expect(pauses.startTrials(['pay'])).toEqual([])
  clock.advance(1_000)
  expect(pauses.startTrials(['pay'])).toEqual(['pay'])
  pauses.begin('pay')('not_run')
  expect(pauses.isPaused('pay')).toBe(true)
  clock.advance(1_000)
  expect(pauses.startTrials(['pay'])).toEqual(['pay'])
})

it('starts no trial while ten times as many records hang as pause a group', () => {
  const { clock, pauses, pause } = setup()
  for (let n = 0; n < 20; n += 2) {
    pause(n, n + 2)
    clock.advance(FIVE_MINUTES_MS)
    const isLast = n === 18
    expect(pauses.startTrials(['pay'])).toEqual(isLast ? [] : ['pay'])
    pauses.begin('pay')('ran')
  }
  expect(pauses.isPaused('pay')).toBe(true)
  expect(pauses.stats().overdue).toBe(20)
})

it('emits one pause for two reasons, and its end when both are over', () => {
  const { clock, pauses, kinds, store } = setup()
  pauses.use()
  const release = pauses.hold('pay')
  const ends = ['r1', 'r2'].map((id) => pauses.countOverdue('pay', id))
  clock.advance(1_000)
  expect(kinds().filter((kind) => kind === 'work_paused').length).toBe(1)
  expect(pausedWork(store).length).toBe(1)
  for (const end of ends) end()
  expect(pauses.stats().paused).toEqual([{ part: 'operation', name: 'pay', overdue: 0 }])
  expect(kinds()).not.toContain('work_resumed')
  release()
  expect(kinds().at(-1)).toBe('work_resumed')
  expect(pausedWork(store)).toEqual([])
})

it('lists pauses in health only while their owner is in use', () => {
  const { pauses, pause, store } = setup()
  pause(0, 2)
  expect(pausedWork(store)).toEqual([])
  const ends = [pauses.use(), pauses.use()]
  expect(pausedWork(store)).toEqual([{ part: 'operation', name: 'pay', overdue: 2 }])
  ends[0]!()
  ends[0]!()
  expect(pausedWork(store).length).toBe(1)
  ends[1]!()
  expect(pausedWork(store)).toEqual([])
})
