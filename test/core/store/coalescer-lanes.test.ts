import { describe, expect, it } from 'vitest'
import { Coalescer, type CoalescerLimits } from '../../../src/core/store/coalescer.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { gate } from '../engine/engine-fixture.ts'

const LIMITS: CoalescerLimits = {
  rowsMax: 32,
  bytesMax: 1_000,
  flushesMax: 4,
  waitingMax: 100,
  timeoutMs: 1_000,
  lanes: { count: 4, flushesMax: 1 },
}

/**
 * The first digit of a request is its lane; a request without one is for the whole store. The test
 * decides when calls are answered.
 */
function setup(limits: Partial<CoalescerLimits> = {}) {
  const clock = new FakeClock()
  const calls: {
    readonly requests: readonly string[]
    readonly signal: AbortSignal
    readonly answer: () => void
    readonly fail: (error: unknown) => void
  }[] = []
  const ended: [number | undefined, boolean][] = []
  const coalescer = new Coalescer<string, string>({
    clock,
    store: 'test',
    call: 'claim',
    laneOf: (request) => (/^\d/.test(request) ? Number(request[0]) : undefined),
    flush: (requests, signal) => {
      const { opened, open, fail } = gate<string[]>()
      calls.push({ requests, signal, answer: () => open([...requests]), fail })
      return opened
    },
    bytesOf: () => 1,
    limits: { ...LIMITS, ...limits },
    onCallEnd: (error, lane) => ended.push([lane, error === undefined]),
  })
  const add = (request: string, tenant = 'one') => coalescer.add(request, tenant)
  return { clock, calls, ended, add, sent: () => calls.map(({ requests }) => requests) }
}

async function failureOf(promise: Promise<unknown>): Promise<StoreFailedError> {
  const error = await promise.then(
    () => expect.fail('expected the request to fail'),
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(StoreFailedError)
  return error as StoreFailedError
}

describe('requests for different lanes', () => {
  it('requests for different lanes never share a call', async () => {
    const { add, sent, clock } = setup()
    for (const request of ['0a', '1a', '0b', 'whole', '1b']) void add(request)
    await clock.advanceAsync(0)
    expect(sent()).toEqual([['0a', '0b'], ['1a', '1b'], ['whole']])
  })

  it('requests are answered while the call of another lane has no answer', async () => {
    const { add, calls, sent, clock } = setup()
    const stuck = failureOf(add('0a'))
    await clock.advanceAsync(0)
    const held = failureOf(add('0b'))
    for (let n = 0; n < 20; n++) {
      const answer = add(`1-${n}`)
      await clock.advanceAsync(0)
      calls.at(-1)!.answer()
      expect(await answer).toBe(`1-${n}`)
    }
    // The silent lane has one call in progress, and no other.
    expect(sent().filter(([first]) => first!.startsWith('0'))).toEqual([['0a']])
    await clock.advanceAsync(1_000)
    expect((await stuck).failure).toBe('unavailable')
    await clock.advanceAsync(1_000)
    expect((await held).failure).toBe('unavailable')
  })

  it('requests for different lanes fail separately, and the failure names its lane', async () => {
    const { add, calls, ended, clock } = setup()
    const bad = failureOf(add('2a'))
    const good = add('3a')
    await clock.advanceAsync(0)
    calls[0]!.fail(new Error('TRYAGAIN'))
    calls[1]!.answer()
    expect([(await bad).failure, await good]).toEqual(['unavailable', '3a'])
    expect(ended).toEqual([
      [2, false],
      [3, true],
    ])
  })

  it('requests for different lanes share one timer and one signal when sent together', async () => {
    const { add, calls, clock } = setup()
    const lost = failureOf(add('0a'))
    const others = ['1a', '2a', '3a'].map((request) => add(request))
    await clock.advanceAsync(0)
    expect(new Set(calls.map(({ signal }) => signal)).size).toBe(1)
    expect(clock.pendingTimers).toBe(1)
    for (const call of calls.slice(1)) call.answer()
    await Promise.all(others)
    expect([clock.pendingTimers, calls[0]!.signal.aborted]).toEqual([1, false])
    await clock.advanceAsync(1_000)
    expect((await lost).failure).toBe('unavailable')
    expect([clock.pendingTimers, calls[0]!.signal.aborted]).toEqual([0, true])
  })

  it('a request for a lane that does not exist goes to the whole store', async () => {
    const { add, sent, clock } = setup()
    for (const request of ['9a', 'x', '8b']) void add(request)
    await clock.advanceAsync(0)
    expect(sent()).toEqual([['9a', 'x', '8b']])
  })
})

describe('a lane', () => {
  it('a lane gathers the requests that arrive while its call is in progress', async () => {
    const { add, calls, sent, clock } = setup()
    void add('0a')
    await clock.advanceAsync(0)
    for (const request of ['0b', '0c', '0d']) void add(request)
    await clock.advanceAsync(0)
    expect(sent()).toEqual([['0a']])
    calls[0]!.answer()
    await clock.advanceAsync(0)
    expect(sent()).toEqual([['0a'], ['0b', '0c', '0d']])
  })

  it('a lane lets its tenants take turns', async () => {
    const { add, calls, sent, clock } = setup({ rowsMax: 3 })
    void add('0first', 'a')
    await clock.advanceAsync(0)
    for (let n = 0; n < 50; n++) void add(`0a${n}`, 'a')
    const other = add('0b', 'b')
    calls[0]!.answer()
    await clock.advanceAsync(0)
    expect(sent()[1]).toEqual(['0a0', '0b', '0a1'])
    calls[1]!.answer()
    expect(await other).toBe('0b')
  })
})

describe('when too much waits', () => {
  it('the lane with most requests makes room, for any tenant', async () => {
    const { add, calls, clock } = setup()
    // One call is in progress in each lane, and 100 tenants wait for lane 0.
    const under = ['0', '1'].map((request) => add(request))
    await clock.advanceAsync(0)
    const silent = Array.from({ length: 100 }, (_, n) => failureOf(add(`0-${n}`, `t${n}`)))
    const healthy = Array.from({ length: 20 }, (_, n) => add(`1-${n}`, 'big'))
    calls[1]!.answer()
    await clock.advanceAsync(0)
    calls[2]!.answer()
    expect(await Promise.all(healthy)).toHaveLength(20)
    calls[0]!.answer()
    await Promise.all(under)
    await clock.advanceAsync(2_000)
    const failures = (await Promise.all(silent)).map(({ failure }) => failure)
    expect(failures.filter((failure) => failure === 'overloaded').length).toBeGreaterThanOrEqual(20)
  })

  it('a tenant that floods one lane displaces no other lane and no other tenant', async () => {
    const { add, calls, clock } = setup()
    for (const lane of ['0', '1']) void add(lane)
    await clock.advanceAsync(0)
    const flood = Array.from({ length: 300 }, (_, n) => add(`0-${n}`, 'flood'))
    const refused = flood.map((one) =>
      one.catch((error: unknown) => (error as StoreFailedError).failure),
    )
    const others = [
      ...Array.from({ length: 10 }, (_, n) => add(`0-other-${n}`, `other${n}`)),
      ...Array.from({ length: 10 }, (_, n) => add(`1-other-${n}`, `other${n}`)),
    ]
    for (let n = 0; n < calls.length; n++) {
      calls[n]!.answer()
      await clock.advanceAsync(0)
    }
    expect(await Promise.all(others)).toHaveLength(20)
    const ends = await Promise.all(refused)
    expect(ends.filter((end) => end === 'overloaded')).toHaveLength(220)
  })

  it('the fullest lane refuses its newest request', async () => {
    const { add, clock } = setup({ waitingMax: 10 })
    for (const lane of ['0', '1']) void add(lane)
    await clock.advanceAsync(0)
    for (let n = 0; n < 3; n++) void add(`1-${n}`)
    for (let n = 0; n < 7; n++) void add(`0-${n}`)
    expect((await failureOf(add('0-late'))).failure).toBe('overloaded')
  })
})

describe('where a call has one row', () => {
  const ONE_ROW = { rowsMax: 1, flushesMax: 8, lanes: undefined }

  it('one tenant never has all calls of one row, and gets the rest as they end', async () => {
    const { add, calls, sent, clock } = setup(ONE_ROW)
    const flood = Array.from({ length: 20 }, (_, n) => add(`a${n}`, 'a'))
    await clock.advanceAsync(0)
    expect(sent()).toHaveLength(6)
    const other = add('b', 'b')
    await clock.advanceAsync(0)
    expect(sent().at(-1)).toEqual(['b'])
    calls.at(-1)!.answer()
    expect(await other).toBe('b')
    for (let n = 0; n < calls.length; n++) {
      calls[n]!.answer()
      await clock.advanceAsync(0)
    }
    expect(await Promise.all(flood)).toHaveLength(20)
  })

  it('other tenants get a call of one row although two tenants hold theirs', async () => {
    const { add, sent, clock } = setup({ ...ONE_ROW, flushesMax: 16 })
    for (const tenant of ['a', 'b']) {
      for (let n = 0; n < 20; n++) void add(`${tenant}${n}`, tenant)
      await clock.advanceAsync(0)
    }
    const held = sent().length
    expect(held).toBeLessThan(16)
    void add('c', 'c')
    await clock.advanceAsync(0)
    expect(sent().at(-1)).toEqual(['c'])
  })

  it('lanes that share the calls of the store are distinguished when a call ends', async () => {
    const lanes = { count: 4, flushesMax: undefined }
    const { add, calls, ended, clock } = setup({ ...ONE_ROW, lanes })
    const bad = failureOf(add('2a'))
    const good = add('2b', 'b')
    await clock.advanceAsync(0)
    calls[0]!.fail(new Error('throttled'))
    calls[1]!.answer()
    await Promise.all([bad, good])
    expect(ended).toEqual([
      [2, false],
      [2, true],
    ])
  })
})
