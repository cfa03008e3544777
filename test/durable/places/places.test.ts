import { expect, it } from 'vitest'
import type { EngineEvent } from '../../../src/core/events.ts'
import { pausedWork } from '../../../src/core/engine/paused-work.ts'
import { resolvePlaces } from '../../../src/durable/places/place-options.ts'
import { Places, type PlacesOptions } from '../../../src/durable/places/places.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { simulatedStore } from '../simulated/store.ts'

function setup(limits: Partial<PlacesOptions> = {}) {
  const clock = new FakeClock()
  const store = simulatedStore(clock)
  const events: EngineEvent[] = []
  const places = new Places({
    part: 'relay',
    clock,
    store,
    emit: (event) => events.push(event),
    places: 4,
    perGroup: 8,
    perTenant: 8,
    reserve: 4,
    overdueMax: 2,
    ...limits,
  })
  const take = (group: string, tenant: string) => places.take({ group, tenant })
  const fill = (group: string, tenant: string, count = 4) =>
    Array.from({ length: count }, () => take(group, tenant)!)
  const kinds = () => events.map(({ kind }) => kind)
  return { clock, store, events, kinds, places, take, fill }
}

it('gives all ordinary places to a single tenant and a single group', () => {
  const { places, fill, take } = setup()
  fill('a', 'one')
  expect(places.free).toBe(0)
  expect(take('a', 'one')).toBeUndefined()
  expect(places.query(['a'])).toBeUndefined()
})

it('keeps half of the reserve for tenants without a place', () => {
  const { places, fill, take } = setup()
  fill('a', 'one')
  const [forTenants] = places.reserveQueries(['a'])
  expect(forTenants).toEqual({ limit: 2, groups: ['a'], withoutTenants: ['one'] })
  expect(take('a', 'two')).toBeDefined()
  expect(take('a', 'two')).toBeUndefined()
  expect(take('a', 'three')).toBeDefined()
  expect(take('a', 'four')).toBeUndefined()
})

it('keeps the rest of the reserve for groups without a place', () => {
  const { places, fill, take } = setup()
  fill('a', 'one')
  take('a', 'two')
  take('a', 'three')
  expect(places.reserveQueries(['a', 'b'])).toEqual([
    { limit: 2, groups: ['b'], withoutTenants: [] },
  ])
  expect(take('b', 'one')).toBeDefined()
  expect(take('b', 'one')).toBeUndefined()
  expect(take('c', 'one')).toBeDefined()
  expect(take('d', 'one')).toBeUndefined()
  expect(places.running).toBe(8)
})

it('keeps places for other tenants while one tenant uses many groups', () => {
  const { fill, take } = setup()
  fill('a', 'one')
  expect(take('b', 'one')).toBeDefined()
  expect(take('c', 'one')).toBeDefined()
  expect(take('d', 'one')).toBeUndefined()
  expect(take('a', 'two')).toBeDefined()
  expect(take('a', 'three')).toBeDefined()
})

it('limits the places of a tenant and of a group', () => {
  const { places, take } = setup({ perTenant: 1, perGroup: 2 })
  expect(take('a', 'one')).toBeDefined()
  expect(take('a', 'one')).toBeUndefined()
  expect(take('a', 'two')).toBeDefined()
  expect(take('a', 'three')).toBeUndefined()
  expect(places.query(['a', 'b'])).toEqual({
    limit: 2,
    groups: ['b'],
    withoutTenants: ['one', 'two'],
  })
})

it('frees a place when its work ends, and only once', () => {
  const { places, take } = setup()
  const place = take('a', 'one')!
  place.end()
  place.end()
  expect(places.running).toBe(0)
  expect(places.stats()).toEqual({ running: 0, overdue: 0, paused: [] })
})

it('frees the place of overdue work at once, and emits work_overdue after a second', () => {
  const { clock, places, take, events } = setup({ overdueMax: 5 })
  const place = take('a', 'one')!
  place.overdue('message 1')
  expect(places.free).toBe(4)
  expect(places.stats()).toEqual({ running: 0, overdue: 1, paused: [] })
  clock.advance(999)
  expect(events).toEqual([])
  clock.advance(1)
  expect(events).toEqual([
    { kind: 'work_overdue', part: 'relay', name: 'a', subject: 'message 1', overdue: 1 },
  ])
  place.end()
  expect(places.stats().overdue).toBe(0)
})

it('emits nothing for work that obeys its signal within a second', () => {
  const { clock, places, fill, events } = setup()
  const [one, two] = fill('a', 'one', 2)
  one!.overdue('1')
  two!.overdue('2')
  expect(places.pauses.isPaused('a')).toBe(true)
  one!.end()
  two!.end()
  clock.advance(10_000)
  expect(events).toEqual([])
  expect(places.pauses.isPaused('a')).toBe(false)
})

it('pauses only the group with too much overdue work', () => {
  const { clock, store, places, fill, take, kinds } = setup()
  places.pauses.use()
  const [one, two] = fill('a', 'one', 2)
  one!.overdue('1')
  two!.overdue('2')
  expect(take('a', 'two')).toBeUndefined()
  expect(take('b', 'one')).toBeDefined()
  expect(places.query(['a', 'b'])!.groups).toEqual(['b'])
  clock.advance(1_000)
  expect(kinds()).toEqual(['work_overdue', 'work_paused', 'work_overdue'])
  const paused = [{ part: 'relay', name: 'a', overdue: 2 }]
  expect(places.stats().paused).toEqual(paused)
  expect(pausedWork(store)).toEqual(paused)

  two!.end()
  expect(kinds().at(-1)).toBe('work_resumed')
  expect(pausedWork(store)).toEqual([])
  expect(take('a', 'two')).toBeDefined()
})

it('reserves two fifths of the places by default, and two at least', () => {
  const bounds = { fallback: 10, max: 1_000, perGroup: 'perTopic' }
  const none = {
    concurrency: undefined,
    perGroup: undefined,
    perTenant: undefined,
    reserve: undefined,
  }
  expect(resolvePlaces('createRelay', none, bounds)).toEqual({
    places: 10,
    perGroup: 14,
    perTenant: 14,
    reserve: 4,
    overdueMax: 10,
  })
  expect(resolvePlaces('createRelay', { ...none, concurrency: 1 }, bounds).reserve).toBe(2)
  expect(resolvePlaces('createRelay', { ...none, reserve: 0 }, bounds).reserve).toBe(0)
  expect(() => resolvePlaces('createRelay', { ...none, perGroup: 0 }, bounds)).toThrow(
    'createRelay.perTopic',
  )
})
