import { describe, expect, it } from 'vitest'
import { Coalescer, type CoalescerLimits } from '../../../src/core/store/coalescer.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { gate } from '../engine/engine-fixture.ts'

const LIMITS: CoalescerLimits = {
  rowsMax: 3,
  bytesMax: 100,
  flushesMax: 1,
  waitingMax: 10,
  timeoutMs: 1_000,
}

type Flush = (requests: readonly string[]) => Promise<string[]>

/** Requests are texts, whose size is their length; each is answered with its upper case. */
function setup(
  limits: Partial<CoalescerLimits> = {},
  flush: Flush = async (all) => all.map(upper),
) {
  const clock = new FakeClock()
  const batches: string[][] = []
  const fair = new Coalescer<string, string>({
    clock,
    store: 'test',
    call: 'claim',
    flush: (requests) => {
      batches.push([...requests])
      return flush(requests)
    },
    bytesOf: (request) => request.length,
    limits: { ...LIMITS, ...limits },
  })
  const coalescer = { add: (request: string, tenant = 'one') => fair.add(request, tenant) }
  return { clock, coalescer, batches }
}

const upper = (request: string): string => request.toUpperCase()

/** A flush that answers each batch when the test says so. */
function heldFlush() {
  const gates: { open: () => void; fail: (error: unknown) => void }[] = []
  const flush: Flush = (requests) => {
    const { opened, open, fail } = gate<string[]>()
    gates.push({ open: () => open(requests.map(upper)), fail })
    return opened
  }
  return { flush, gates }
}

const rejected = (): StoreFailedError =>
  new StoreFailedError({ store: 'test', operation: 'claim', failure: 'rejected', cause: 'bad row' })

async function failureOf(promise: Promise<unknown>): Promise<StoreFailedError> {
  const error = await promise.then(
    () => expect.fail('expected the request to fail'),
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(StoreFailedError)
  return error as StoreFailedError
}

describe('a batch', () => {
  it('a batch is sent at once when none is in progress, with all requests of a burst', async () => {
    const { coalescer, batches, clock } = setup()
    const answers = Promise.all([coalescer.add('a'), coalescer.add('b')])
    expect(batches).toEqual([])
    expect(await answers).toEqual(['A', 'B'])
    expect(batches).toEqual([['a', 'b']])
    expect(clock.pendingTimers).toBe(0)
  })

  it('a batch gathers the requests that arrive during a flush, in order', async () => {
    const { flush, gates } = heldFlush()
    const { coalescer, batches, clock } = setup({}, flush)
    const answers = [coalescer.add('a')]
    await clock.advanceAsync(0)
    answers.push(coalescer.add('b'), coalescer.add('c'))
    await clock.advanceAsync(0)
    expect(batches).toEqual([['a']])
    gates[0]!.open()
    await clock.advanceAsync(0)
    expect(batches).toEqual([['a'], ['b', 'c']])
    gates[1]!.open()
    expect(await Promise.all(answers)).toEqual(['A', 'B', 'C'])
  })

  it('a batch has at most rowsMax rows', async () => {
    const { coalescer, batches } = setup()
    await Promise.all([...'abcdefg'].map((request) => coalescer.add(request)))
    expect(batches).toEqual([['a', 'b', 'c'], ['d', 'e', 'f'], ['g']])
  })

  it('a batch has at most bytesMax bytes, and a larger request is sent alone', async () => {
    const { coalescer, batches } = setup({ bytesMax: 4 })
    const requests = ['aa', 'bb', 'c', 'too large', 'dddd', 'e']
    await Promise.all(requests.map((request) => coalescer.add(request)))
    expect(batches).toEqual([['aa', 'bb'], ['c'], ['too large'], ['dddd'], ['e']])
  })

  it('at most flushesMax batches are in progress', async () => {
    const { flush, gates } = heldFlush()
    const { coalescer, batches, clock } = setup({ flushesMax: 2, rowsMax: 1 }, flush)
    const answers = [...'abc'].map((request) => coalescer.add(request))
    await clock.advanceAsync(0)
    expect(batches).toEqual([['a'], ['b']])
    gates[1]!.open()
    expect(await answers[1]).toBe('B')
    await clock.advanceAsync(0)
    expect(batches).toEqual([['a'], ['b'], ['c']])
  })
})

describe('a queue that is full', () => {
  it('a full queue refuses a request as overloaded, and accepts the next with room', async () => {
    const { flush, gates } = heldFlush()
    const { coalescer, clock } = setup({ waitingMax: 2 }, flush)
    const first = coalescer.add('a')
    await clock.advanceAsync(0)
    const waiting = [coalescer.add('b'), coalescer.add('c')]
    const refused = await failureOf(coalescer.add('d'))
    expect(refused.failure).toBe('overloaded')
    expect(refused.message).toContain('2 requests are already waiting')

    gates[0]!.open()
    await clock.advanceAsync(0)
    gates[1]!.open()
    expect(await Promise.all([first, ...waiting])).toEqual(['A', 'B', 'C'])
    const next = coalescer.add('e')
    await clock.advanceAsync(0)
    gates[2]!.open()
    expect(await next).toBe('E')
  })

  it('a request that has waited too long is refused as never sent', async () => {
    const { flush, gates } = heldFlush()
    const { coalescer, clock, batches } = setup({ rowsMax: 1 }, flush)
    const first = failureOf(coalescer.add('a'))
    const second = failureOf(coalescer.add('b'))
    const third = failureOf(coalescer.add('c'))
    await clock.advanceAsync(1_000)
    expect((await first).failure).toBe('unavailable')
    // The second was sent when the first timed out; the third has waited for both.
    await clock.advanceAsync(1_000)
    expect((await second).failure).toBe('unavailable')
    expect(await third).toMatchObject({ failure: 'overloaded' })
    expect((await third).message).toContain('not sent within 1000 ms')
    expect(batches).toEqual([['a'], ['b']])

    const fresh = coalescer.add('d')
    await clock.advanceAsync(0)
    gates[2]!.open()
    expect(await fresh).toBe('D')
  })
})

describe('a store call that fails', () => {
  it('a failed store call fails the whole batch, and nothing is sent again', async () => {
    const { coalescer, batches } = setup({}, () => Promise.reject(new Error('connection lost')))
    const failures = await Promise.all(
      [...'ab'].map((request) => failureOf(coalescer.add(request))),
    )
    for (const failure of failures) {
      expect(failure.failure).toBe('unavailable')
      expect(failure.message).toContain('test store failed to claim')
      expect(failure.message).toContain('connection lost')
    }
    expect(batches).toEqual([['a', 'b']])
  })

  it('a failure of the store is passed on unchanged', async () => {
    const own = new StoreFailedError({ store: 'own', operation: 'x', cause: undefined })
    const { coalescer } = setup({}, () => Promise.reject(own))
    expect(await failureOf(coalescer.add('a'))).toBe(own)
  })

  it('a store call that throws synchronously counts as failed', async () => {
    const { coalescer, clock } = setup({}, () => {
      throw new Error('not even a promise')
    })
    expect((await failureOf(coalescer.add('a'))).message).toContain('not even a promise')
    expect(clock.pendingTimers).toBe(0)
  })

  it('a store call with the wrong number of answers counts as failed', async () => {
    const { coalescer } = setup({}, async () => ['only one'])
    const failures = await Promise.all(
      [...'ab'].map((request) => failureOf(coalescer.add(request))),
    )
    expect(failures[0]!.message).toContain('returned 1 outcomes for 2 requests')
    expect(failures[1]).toBe(failures[0])
  })

  it('a failed store call does not affect the next one', async () => {
    let calls = 0
    const { coalescer } = setup({}, async (requests) => {
      if (++calls === 1) throw new Error('once')
      return requests.map(upper)
    })
    await failureOf(coalescer.add('a'))
    expect(await coalescer.add('b')).toBe('B')
  })
})

describe('a store call without an answer', () => {
  it('a store call times out after timeoutMs, and its late answer is ignored', async () => {
    const { flush, gates } = heldFlush()
    const { coalescer, clock } = setup({}, flush)
    const lost = failureOf(coalescer.add('a'))
    await clock.advanceAsync(999)
    const next = coalescer.add('b')
    await clock.advanceAsync(1)
    expect(await lost).toMatchObject({ failure: 'unavailable' })
    expect((await lost).message).toContain('no answer within 1000 ms')

    gates[1]!.open()
    expect(await next).toBe('B')
    gates[0]!.open()
    await clock.advanceAsync(0)
    expect(clock.pendingTimers).toBe(0)
  })
})

describe('a batch that the store rejects', () => {
  it('a rejected batch is split into single rows, and only the bad row fails', async () => {
    const { coalescer, batches } = setup({}, async (requests) => {
      if (requests.includes('bad')) throw rejected()
      return requests.map(upper)
    })
    const [a, bad, c] = [coalescer.add('a'), failureOf(coalescer.add('bad')), coalescer.add('c')]
    expect(await Promise.all([a, c])).toEqual(['A', 'C'])
    expect((await bad).failure).toBe('rejected')
    expect(batches).toEqual([['a', 'bad', 'c'], ['a'], ['bad'], ['c']])
  })

  it('a rejected single row is not sent again', async () => {
    const { coalescer, batches } = setup({}, () => Promise.reject(rejected()))
    expect((await failureOf(coalescer.add('bad'))).failure).toBe('rejected')
    expect(batches).toEqual([['bad']])
  })

  // The batch is rejected, the first single row works, then the store falls silent.
  it('the rest of a split batch fails as never sent when the store fails otherwise', async () => {
    const { coalescer, batches, clock } = setup({}, async (requests) => {
      if (requests.length > 1) throw rejected()
      if (requests[0] !== 'a') return new Promise(() => undefined)
      return requests.map(upper)
    })
    const first = coalescer.add('a')
    const [silent, unsent] = [failureOf(coalescer.add('b')), failureOf(coalescer.add('c'))]
    expect(await first).toBe('A')
    await clock.advanceAsync(1_000)
    expect((await silent).failure).toBe('unavailable')
    expect((await unsent).failure).toBe('overloaded')
    expect(batches).toEqual([['a', 'b', 'c'], ['a'], ['b']])
  })
})

describe('tenants', () => {
  it('tenants take turns: one request waits for no batch of another tenant', async () => {
    const { flush, gates } = heldFlush()
    const { coalescer, batches, clock } = setup({ waitingMax: 100 }, flush)
    const answers = [coalescer.add('first', 'a')]
    await clock.advanceAsync(0)
    for (let n = 0; n < 50; n++) answers.push(coalescer.add(`a${n}`, 'a'))
    const other = coalescer.add('b', 'b')
    gates[0]!.open()
    await clock.advanceAsync(0)
    expect(batches[1]).toEqual(['a0', 'b', 'a1'])
    gates[1]!.open()
    expect(await other).toBe('B')
    for (let n = 2; n <= 18; n++) {
      await clock.advanceAsync(0)
      gates[n]?.open()
    }
    await Promise.all(answers)
  })

  it('a full queue refuses the newest request of the tenant with most', async () => {
    const { flush, gates } = heldFlush()
    const { coalescer, clock } = setup({}, flush)
    const first = coalescer.add('first', 'a')
    await clock.advanceAsync(0)
    const waiting = Array.from({ length: 10 }, (_, n) => coalescer.add(`a${n}`, 'a'))
    const refused = failureOf(waiting[9]!)
    const other = coalescer.add('b', 'b')
    expect((await refused).failure).toBe('overloaded')
    expect((await failureOf(coalescer.add('a10', 'a'))).failure).toBe('overloaded')
    for (let n = 0; n < 5; n++) {
      gates[n]?.open()
      await clock.advanceAsync(0)
    }
    expect(await Promise.all([first, other])).toEqual(['FIRST', 'B'])
    await Promise.all(waiting.slice(0, 9))
  })
})

describe('requests that share a row', () => {
  /** `a1` and `a2` have subject a; requests with the same digit are the same question. */
  const sharing = {
    subjectOf: (request: string) => request[0]!,
    questionOf: (request: string) => request[1]!,
    answerFor: (_: string, outcome: string) => `shared ${outcome}`,
  }

  function shared(limits: Partial<CoalescerLimits>, flush: Flush) {
    const clock = new FakeClock()
    const batches: string[][] = []
    const coalescer = new Coalescer<string, string>({
      clock,
      store: 'test',
      call: 'claim',
      sharing,
      flush: (requests) => {
        batches.push([...requests])
        return flush(requests)
      },
      bytesOf: (request) => request.length,
      limits: { ...LIMITS, ...limits },
    })
    const add = (request: string, tenant = request[0]!) => coalescer.add(request, tenant)
    return { clock, batches, add }
  }

  it('requests that share a row get one answer; other questions go in later calls', async () => {
    const { add, batches } = shared({}, async (all) => all.map(upper))
    const answers = await Promise.all(['a1', 'a2', 'b1', 'a1', 'a2', 'a3'].map((one) => add(one)))
    expect(answers).toEqual(['A1', 'A2', 'B1', 'shared A1', 'shared A2', 'A3'])
    expect(batches).toEqual([['a1', 'b1'], ['a2'], ['a3']])
  })

  it('a request that shares a row is sent when all earlier ones were refused', async () => {
    const clock = new FakeClock()
    const refusal = (request: string) => (request === 'a1' ? new Error('shut') : undefined)
    const coalescer = new Coalescer<string, string>({
      clock,
      store: 'test',
      call: 'claim',
      sharing,
      flush: async (requests) => requests.map(upper),
      bytesOf: (request) => request.length,
      limits: LIMITS,
      gate: { isRefusingSome: () => true, refusal },
    })
    const refused = coalescer.add('a1', 'a')
    const behind = coalescer.add('a2', 'a')
    await expect(refused).rejects.toThrow('shut')
    await clock.advanceAsync(10)
    expect(await behind).toBe('A2')
  })

  it('requests that share a row count individually for the limit of the queue', async () => {
    const { flush, gates } = heldFlush()
    const { add, clock, batches } = shared({ waitingMax: 4 }, flush)
    const first = add('x1')
    await clock.advanceAsync(0)
    const hot = [add('a1'), add('a1'), add('a2'), add('a2')]
    const refused = failureOf(hot[3]!)
    const other = add('b1')
    expect(await refused).toMatchObject({ failure: 'overloaded' })
    const next = failureOf(hot[2]!)
    const another = add('c1')
    expect(await next).toMatchObject({ failure: 'overloaded' })
    gates[0]!.open()
    await clock.advanceAsync(0)
    gates[1]!.open()
    expect(await Promise.all([first, hot[0], hot[1], other, another])).toEqual([
      'X1',
      'A1',
      'shared A1',
      'B1',
      'C1',
    ])
    expect(batches).toEqual([['x1'], ['a1', 'b1', 'c1']])
  })

  it('the next request leads a shared row when the first has waited too long', async () => {
    const { flush, gates } = heldFlush()
    const { add, clock, batches } = shared({ rowsMax: 1 }, flush)
    const hung = [failureOf(add('x1')), failureOf(add('y1', 'x'))]
    const early = failureOf(add('a1', 'x'))
    await clock.advanceAsync(1_000)
    await clock.advanceAsync(500)
    const late = [add('a1', 'x'), add('a1', 'x')]
    await clock.advanceAsync(500)
    await Promise.all(hung)
    expect(await early).toMatchObject({ failure: 'overloaded' })
    expect(batches).toEqual([['x1'], ['y1'], ['a1']])
    gates[2]!.open()
    expect(await Promise.all(late)).toEqual(['A1', 'shared A1'])
  })

  it('requests that share a row fail with an error that names the one that was sent', async () => {
    const { add } = shared({}, () => Promise.reject(new Error('down')))
    const failures = await Promise.all([failureOf(add('a1')), failureOf(add('a1'))])
    expect(failures.map(({ failure, wasSent }) => [failure, wasSent])).toEqual([
      ['unavailable', true],
      ['unavailable', false],
    ])
  })

  it('requests that share a row leave no state', async () => {
    const { add, batches } = shared({}, async (all) => all.map(upper))
    for (let n = 0; n < 3; n++) await Promise.all([add('a1'), add('a1'), add('a2')])
    expect(batches).toEqual([['a1'], ['a2'], ['a1'], ['a2'], ['a1'], ['a2']])
  })
})
