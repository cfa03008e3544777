import { describe, expect, it } from 'vitest'
import {
  SHARED_PLACES_MAX,
  TENANTS_WAITING_MAX,
  WAITING_PER_TENANT_MAX,
  WaitingRoom,
} from '../../../src/core/engine/waiting-room.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { SCOPE, bytes, engineFixture, heldWork, standing } from './engine-fixture.ts'

const WAIT = { whileInProgress: { waitMs: 10_000 } } as const

describe('a duplicate that waits', () => {
  it('a waiting duplicate is woken at once by a holder in the same engine', async () => {
    const { run, clock, kinds } = engineFixture(WAIT)
    const { work, end } = heldWork()
    const first = run(work)
    await clock.advanceAsync(0)
    const second = run(() => bytes('never'))
    await clock.advanceAsync(5_000)
    expect(await standing(second)).toBe('pending')
    const beforeMs = clock.monotonicMs()
    end()
    expect(await second).toMatchObject({ kind: 'replayed', result: bytes('done') })
    expect(clock.monotonicMs()).toBe(beforeMs)
    await first
    expect(kinds()).toEqual(['reserve_created', 'reserve_replay'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('a waiting duplicate polls with growing pauses when the holder is elsewhere', async () => {
    const { run, node, clock, store } = engineFixture(WAIT)
    const { work, end } = heldWork()
    const first = node()(work)
    await clock.advanceAsync(0)
    const second = run(() => bytes('never'))
    await clock.advanceAsync(25)
    expect(store.asked('claim')).toHaveLength(2)
    await clock.advanceAsync(50)
    expect(store.asked('claim')).toHaveLength(3)
    await clock.advanceAsync(5_000)
    expect(store.asked('claim').length).toBeLessThan(14)
    end()
    await first
    await clock.advanceAsync(1_000)
    expect(await second).toMatchObject({ kind: 'replayed', result: bytes('done') })
  })

  it('a waiting duplicate gets in_progress when its time is up', async () => {
    const { run, clock, kinds } = engineFixture(WAIT)
    const { work, end } = heldWork()
    const first = run(work)
    await clock.advanceAsync(0)
    const second = run(() => bytes('never'))
    await clock.advanceAsync(9_999)
    expect(await standing(second)).toBe('pending')
    await clock.advanceAsync(1)
    expect(await second).toMatchObject({ kind: 'in_progress' })
    expect(kinds()).toEqual(['reserve_created', 'reserve_in_progress'])
    end()
    await first
  })

  it('a waiting duplicate runs the work when the first attempt had no effect', async () => {
    const { run, clock } = engineFixture(WAIT)
    const { work, fail } = heldWork()
    const first = run(work).catch((error: unknown) => error)
    await clock.advanceAsync(0)
    const others = [run(() => bytes('second')), run(() => bytes('third'))]
    await clock.advanceAsync(100)
    fail(new Error('declined'))
    const kinds = (await Promise.all(others)).map(({ kind }) => kind)
    expect(kinds).toEqual(['ran', 'replayed'])
    expect(await first).toMatchObject({ message: 'declined' })
  })

  // The holder dies on another node, and the verdict comes between two polls of the duplicate.
  it('a waiting duplicate is woken by a verdict', async () => {
    const { run, node, engine, clock, records } = engineFixture(WAIT)
    void node()(heldWork().work)
    await clock.advanceAsync(0)
    const waiting = run(() => bytes('never'))
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_000)
    const [swept] = await records.sweep({ limit: 1 })
    const { recordId } = swept!
    await engine.resolve({ recordId }, { kind: 'completed', result: bytes('found out') })
    expect(await waiting).toMatchObject({ kind: 'replayed', result: bytes('found out') })
  })

  it('a waiting duplicate fails when the store fails at a poll', async () => {
    const { run, clock, store } = engineFixture(WAIT)
    const { work } = heldWork()
    void run(work)
    await clock.advanceAsync(0)
    store.next('claim', 'ok', 'fail')
    const second = run(() => bytes('never')).catch((error: unknown) => error)
    await clock.advanceAsync(25)
    expect(await second).toMatchObject({ code: 'STORE_FAILED' })
  })

  it('a duplicate gets the conflict at once when its tenant has no place left', async () => {
    const { run, clock } = engineFixture(WAIT)
    const { work } = heldWork()
    void run(work)
    await clock.advanceAsync(0)
    const waiting = Array.from({ length: WAITING_PER_TENANT_MAX }, () => run(() => bytes('x')))
    await clock.advanceAsync(0)
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'in_progress' })
    expect(await standing(waiting[0]!)).toBe('pending')

    // Another tenant still has its places.
    const scope = { ...SCOPE, tenant: 'umbrella' }
    void run(work, { scope })
    await clock.advanceAsync(0)
    const other = run(() => bytes('x'), { scope })
    await clock.advanceAsync(0)
    expect(await standing(other)).toBe('pending')

    await clock.advanceAsync(10_000)
    await Promise.all(waiting)
    const again = run(() => bytes('x'))
    await clock.advanceAsync(100)
    expect(await standing(again)).toBe('pending')
  })

  // close() wakes the duplicate when the key is free: a claim would start new work.
  it('a waiting duplicate starts nothing when the engine closes', async () => {
    const { run, node, clock, engine, records } = engineFixture(WAIT)
    const { work } = heldWork()
    void node({ onLapse: 'rerun' })(work)
    await clock.advanceAsync(0)
    const { work: never, entered } = heldWork()
    const waiting = run(never)
    await clock.advanceAsync(10)
    clock.jumpWallTime(60_000)
    await records.sweep({ limit: 1 })
    const closing = engine.close()
    expect(await waiting).toMatchObject({ kind: 'in_progress' })
    expect(await closing).toEqual({ abandoned: 0 })
    expect(entered()).toBe(0)
  })
})

describe('WaitingRoom', () => {
  /** Tenants that take every shared place, each up to the limit of one tenant. */
  function fullRoom() {
    const room = new WaitingRoom(new FakeClock())
    let shared = 0
    for (let tenant = 0; shared < SHARED_PLACES_MAX; tenant++) {
      for (let n = 0; n < WAITING_PER_TENANT_MAX && shared < SHARED_PLACES_MAX; n++) {
        expect(room.enter(`t${tenant}`)).toBe(true)
        if (n > 0) shared++
      }
    }
    return room
  }

  it('WaitingRoom keeps a place for a tenant without waiters while others fill it', () => {
    const room = fullRoom()
    expect(room.enter('late')).toBe(true)
    expect(room.enter('late')).toBe(false)
    expect(room.enter('later')).toBe(true)
  })

  it('WaitingRoom gives a shared place to another tenant when a waiter leaves', () => {
    const room = fullRoom()
    expect(room.enter('late')).toBe(true)
    room.leave('t0')
    expect(room.enter('late')).toBe(true)
    expect(room.enter('t0')).toBe(false)
  })

  it('WaitingRoom limits the number of tenants that wait at once', () => {
    const room = new WaitingRoom(new FakeClock())
    for (let n = 0; n < TENANTS_WAITING_MAX; n++) expect(room.enter(`t${n}`)).toBe(true)
    expect(room.enter('one more')).toBe(false)
    room.leave('t0')
    expect(room.enter('one more')).toBe(true)
  })

  it('WaitingRoom gives one tenant only a part of the places', () => {
    const room = new WaitingRoom(new FakeClock())
    for (let n = 0; n < WAITING_PER_TENANT_MAX; n++) expect(room.enter('a')).toBe(true)
    expect(room.enter('a')).toBe(false)
    expect(room.enter('b')).toBe(true)
    room.leave('a')
    expect(room.enter('a')).toBe(true)
  })

  it('WaitingRoom wakes the waiters of one record, or all, or each at its time', async () => {
    const clock = new FakeClock()
    const room = new WaitingRoom(clock)
    const woken: string[] = []
    const sleep = (identity: string, name: string, ms = 1_000) =>
      room.sleep(identity, ms).then(() => woken.push(name))
    void sleep('i', 'a')
    void sleep('i', 'b')
    void sleep('j', 'c')
    void sleep('k', 'd', 10)
    room.wake('no waiter here')
    await clock.advanceAsync(10)
    expect(woken).toEqual(['d'])
    room.wake('i')
    await clock.advanceAsync(0)
    expect(woken).toEqual(['d', 'a', 'b'])
    room.wakeAll()
    await clock.advanceAsync(0)
    expect(woken).toEqual(['d', 'a', 'b', 'c'])
    expect(clock.pendingTimers).toBe(0)
  })
})
