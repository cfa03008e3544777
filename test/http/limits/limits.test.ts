import { hash } from 'node:crypto'
import { RateLimiterMemory } from 'rate-limiter-flexible'
import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { InvalidOptionsError } from '../../../src/core/errors.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { Answer, HttpReply } from '../../../src/http/guard/exchange.ts'
import type { GuardOptions } from '../../../src/http/guard/guard-options.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import type { LimitOptions } from '../../../src/http/limits/limit-options.ts'
import type { Limiter, LimiterState } from '../../../src/http/limits/limiter.ts'
import { createStatus } from '../../../src/http/status/status.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { gate } from '../../core/engine/engine-fixture.ts'
import { exchangeOf, InstantHandler, ok } from '../guard/instant-handler.ts'

/** Limiters get a hash of the tenant. */
const ACME = hash('sha256', 'acme', 'hex').slice(0, 32)

type Request = Readonly<Record<string, string>>

/** Counts points for ever, as rate-limiter-flexible does within one window. */
class CountingLimiter implements Limiter {
  readonly taken = new Map<string, number>()
  readonly points: number
  readonly duration = 60
  readonly consume: Limiter['consume']

  constructor(points: number) {
    this.points = points
    this.consume = async (key, points = 1) => {
      const taken = (this.taken.get(key) ?? 0) + points
      this.taken.set(key, taken)
      const state = { remainingPoints: Math.max(0, this.points - taken), msBeforeNext: 30_000 }
      // As rate-limiter-flexible rejects: not with an error.
      // oxlint-disable-next-line prefer-promise-reject-errors
      return taken > this.points ? Promise.reject<LimiterState>(state) : state
    }
  }
}

function setup(limits: LimitOptions<Request>, options: Partial<GuardOptions<Request>> = {}) {
  const clock = new FakeClock()
  const store = memoryStore({ clock })
  const events: EngineEvent[] = []
  const engine = createEngine({ store, clock, onEvent: (event) => void events.push(event) })
  const tenant = (request: Request) => request['tenant'] ?? 'acme'
  const guard = createGuard<Request>({ engine, tenant, limits, ...options })
  const send = async (key: string, more: Request = {}, reply: HttpReply = ok(key)) => {
    const handler = new InstantHandler(reply)
    const request = { 'idempotency-key': key, ...more }
    const answer = await guard.handle(request, exchangeOf(request), handler)
    return { answer, status: statusOf(answer), entered: handler.entered }
  }
  const records = async () => {
    const states = ['in_progress', 'completed', 'failed_retryable', 'unknown'] as const
    const lists = await Promise.all(states.map((state) => engine.list({ state })))
    return lists.flat().map(({ key }) => key)
  }
  const refusals = () => events.filter(({ kind }) => kind === 'request_refused')
  return { clock, engine, guard, send, records, events, refusals, tenant }
}

/** A handler's own reply counts as 200, as in `ok`. */
function statusOf(answer: Answer): number {
  return answer.kind === 'reply' ? answer.reply.status : 200
}

function headersOf(answer: Answer): Record<string, string> {
  if (answer.kind !== 'reply') throw new Error(`expected a reply, got ${answer.kind}`)
  return Object.fromEntries(answer.reply.headers)
}

function bodyOf(answer: Answer): string {
  if (answer.kind !== 'reply') throw new Error(`expected a reply, got ${answer.kind}`)
  return new TextDecoder().decode(answer.reply.body)
}

describe('a limit of new keys', () => {
  it('refuses the next new key with 429, uses no key, and leaves no record', async () => {
    const { send, records, refusals } = setup({ newKeys: new CountingLimiter(2) })
    expect([(await send('a')).status, (await send('b')).status]).toEqual([200, 200])
    const { answer, status, entered } = await send('c')
    expect([status, entered]).toEqual([429, 0])
    expect(headersOf(answer)).toMatchObject({
      'Retry-After': '30',
      RateLimit: '"new-keys";r=0;t=30',
      'RateLimit-Policy': '"new-keys";q=2;w=60',
    })
    expect(await records()).toEqual(['a', 'b'])
    expect(refusals()).toMatchObject([{ reason: 'new_keys', tenant: 'acme' }])
  })

  it('replays to a tenant without points, and charges neither replays nor retries', async () => {
    const newKeys = new CountingLimiter(2)
    const { send } = setup({ newKeys })
    await send('a', {}, { ...ok('busy'), status: 503 })
    await send('a')
    await send('b')
    expect(newKeys.taken.get(ACME)).toBe(2)
    for (const key of ['a', 'b']) {
      const { answer, entered } = await send(key)
      expect([headersOf(answer)['Idempotent-Replayed'], entered]).toEqual(['true', 0])
    }
    expect(newKeys.taken.get(ACME)).toBe(2)
  })

  it('counts each tenant separately', async () => {
    const { send } = setup({ newKeys: new CountingLimiter(1) })
    await send('a')
    expect((await send('b')).status).toBe(429)
    expect((await send('b', { tenant: 'other' })).status).toBe(200)
  })

  it('asks a limiter that has get, and takes no point for the question', async () => {
    const limiter = new CountingLimiter(1)
    const asked: string[] = []
    const newKeys: Limiter = {
      consume: limiter.consume,
      get: async (key) => {
        asked.push(key)
        return null
      },
    }
    const { send } = setup({ newKeys })
    await send('a')
    expect([asked, limiter.taken.get(ACME)]).toEqual([[ACME], 1])
  })

  it.each(['fails', 'never answers'])('lets requests pass when the limiter %s', async (how) => {
    const consume = () =>
      how === 'fails' ? Promise.reject(new Error('no limiter')) : new Promise<never>(() => {})
    const { send, events, clock } = setup({ newKeys: { consume } })
    const sent = send('a')
    await clock.advanceAsync(500)
    await clock.advanceAsync(500)
    expect((await sent).status).toBe(200)
    const failed = events.filter(({ kind }) => kind === 'limiter_failed')
    expect(failed).toMatchObject([
      { limit: 'new_keys', tenant: 'acme' },
      { limit: 'new_keys', tenant: 'acme' },
    ])
  })
})

describe('a limit of look-ups', () => {
  it('answers 429 instead of the reply, and still runs new keys', async () => {
    const { send, refusals } = setup({ lookUps: new CountingLimiter(2) })
    await send('a')
    expect([(await send('a')).status, (await send('a')).status]).toEqual([200, 200])
    const { answer, status } = await send('a')
    expect(status).toBe(429)
    expect(headersOf(answer)['RateLimit']).toBe('"look-ups";r=0;t=30')
    expect(Buffer.from((answer as { reply: HttpReply }).reply.body).toString()).not.toContain('"a"')
    expect((await send('b')).entered).toBe(1)
    expect(refusals()).toMatchObject([{ reason: 'look_ups' }])
  })

  it('counts mismatches, so that guessing keys costs points', async () => {
    const lookUps = new CountingLimiter(1)
    const { guard, send } = setup({ lookUps })
    await send('a')
    const guess = async () => {
      const request = { 'idempotency-key': 'a' }
      const exchange = { ...exchangeOf(request), query: 'x=1' }
      return statusOf(await guard.handle(request, exchange, new InstantHandler(ok('x'))))
    }
    expect([await guess(), await guess()]).toEqual([422, 429])
  })

  it('counts each principal, or what caller returns, separately and without its name', async () => {
    const principal = (request: Request) => request['user']
    const lookUps = new CountingLimiter(1)
    const { send } = setup({ lookUps }, { principal })
    await send('a', { user: 'ada' })
    await send('b', { user: 'bob' })
    expect((await send('a', { user: 'ada' })).status).toBe(200)
    expect((await send('a', { user: 'ada' })).status).toBe(429)
    expect((await send('b', { user: 'bob' })).status).toBe(200)
    for (const key of lookUps.taken.keys()) expect(key).toMatch(/^[0-9a-f]{32}$/)
    const byAddress = setup({ lookUps: new CountingLimiter(1), caller: ({ ip }) => ip! })
    await byAddress.send('a', { ip: '::1' })
    expect((await byAddress.send('a', { ip: '::2' })).status).toBe(200)
    expect((await byAddress.send('a', { ip: '::2' })).status).toBe(429)
  })

  it('counts calls of the status handler, also for ids that do not exist', async () => {
    const limits = { lookUps: new CountingLimiter(1) }
    const { engine, tenant, refusals } = setup(limits)
    const options = { engine, tenant, limits }
    const status = createStatus<Request>(options, (request) => request['id'])
    const ask = () =>
      status.reply({ id: '018f0000-0000-7000-8000-000000000000' }, { method: 'GET', accepted: '' })
    expect([(await ask()).status, (await ask()).status]).toEqual([404, 429])
    expect(refusals()).toMatchObject([{ reason: 'look_ups', operation: 'status' }])
  })
})

describe('a limit of requests in flight', () => {
  it('refuses a new key while as many requests run, and replays all the same', async () => {
    const { guard, send, records } = setup({ inFlight: 1 })
    await send('done')
    const running = gate<HttpReply>()
    const request = { 'idempotency-key': 'slow' }
    const handler = new InstantHandler(ok('slow'))
    handler.whole = async () => ({ kind: 'reply', reply: await running.opened })
    const first = guard.handle(request, exchangeOf(request), handler)
    await expect.poll(() => handler.entered).toBe(1)
    const { answer, status } = await send('next')
    expect(status).toBe(429)
    expect(headersOf(answer)).toMatchObject({
      'Retry-After': '1',
      'RateLimit-Policy': '"in-flight";q=1;qu="concurrent-requests"',
    })
    expect((await send('next', { tenant: 'other' })).status).toBe(200)
    expect(headersOf((await send('done')).answer)['Idempotent-Replayed']).toBe('true')
    running.open(ok('slow'))
    await first
    expect((await send('next')).status).toBe(200)
    expect((await records()).toSorted()).toEqual(['done', 'next', 'next', 'slow'])
  })

  it('counts the guards together that share one limits object', async () => {
    const limits = { inFlight: 1 }
    const { guard, engine, tenant } = setup(limits)
    const other = createGuard<Request>({ engine, tenant, limits, operation: 'other' })
    const running = gate<HttpReply>()
    const request = { 'idempotency-key': 'slow' }
    const handler = new InstantHandler(ok('slow'))
    handler.whole = async () => ({ kind: 'reply', reply: await running.opened })
    const first = guard.handle(request, exchangeOf(request), handler)
    await expect.poll(() => handler.entered).toBe(1)
    const refused = await other.handle(request, exchangeOf(request), new InstantHandler(ok('x')))
    expect(statusOf(refused)).toBe(429)
    running.open(ok('slow'))
    await first
  })

  it('stays refused when the store fails, even on a route that is open', async () => {
    const { guard, send, engine } = setup(
      { newKeys: new CountingLimiter(0) },
      { onStoreFailure: 'open' },
    )
    engine.store.claim = async () => {
      throw new Error('gone')
    }
    expect((await send('a')).status).toBe(503)
    expect(guard.engine).toBe(engine)
  })
})

describe('a burst and retries', () => {
  it('let no more requests in flight than the limit when all arrive at once', async () => {
    const { guard } = setup({ inFlight: 2, newKeys: new CountingLimiter(100) })
    const running = gate<HttpReply>()
    const handlers = Array.from({ length: 20 }, () => new InstantHandler(ok('slow')))
    const sent = handlers.map((handler, n) => {
      handler.whole = async () => ({ kind: 'reply', reply: await running.opened })
      const request = { 'idempotency-key': `k${n}` }
      return guard.handle(request, exchangeOf(request), handler)
    })
    const entered = () => handlers.reduce((sum, handler) => sum + handler.entered, 0)
    await expect.poll(entered).toBe(2)
    running.open(ok('slow'))
    const statuses = (await Promise.all(sent)).map(statusOf)
    expect(statuses.filter((status) => status === 429)).toHaveLength(18)
    expect(entered()).toBe(2)
  })

  it('run a key again that has paid for its first attempt, without points', async () => {
    const { send } = setup({ newKeys: new CountingLimiter(1) })
    await send('a', {}, { ...ok('busy'), status: 503 })
    const retry = await send('a')
    expect([retry.status, retry.entered]).toEqual([200, 1])
    expect((await send('b')).status).toBe(429)
  })

  it('charge a refused request that finds its key free as a look-up', async () => {
    const limits = { newKeys: new CountingLimiter(0), lookUps: new CountingLimiter(2) }
    const { send, refusals } = setup(limits)
    for (const key of ['a', 'b', 'c']) expect((await send(key)).status).toBe(429)
    expect(refusals().map((event) => 'reason' in event && event.reason)).toEqual([
      'new_keys',
      'new_keys',
      'look_ups',
    ])
  })

  it('do not tell a client that its earlier request was not executed', async () => {
    const { send } = setup({ lookUps: new CountingLimiter(0) })
    await send('a')
    const { answer, status } = await send('a')
    expect(status).toBe(429)
    const { detail } = JSON.parse(bodyOf(answer)) as { detail: string }
    expect(detail).toContain('An earlier request with its key may have been executed.')
  })
})

describe('the options of limits', () => {
  it.each([
    [{ newKeys: {} }, /limits\.newKeys must be a limiter/],
    [{ lookUps: 'redis' }, /limits\.lookUps must be a limiter/],
    [{ inFlight: 0 }, /limits\.inFlight/],
    [{ timeoutMs: 0 }, /limits\.timeoutMs/],
    [{ caller: 'ip' }, /limits\.caller/],
    [{ perSecond: 5 }, /no option "perSecond"/],
  ])('reject %j', (limits, message) => {
    expect(() => setup(limits as never)).toThrow(InvalidOptionsError)
    expect(() => setup(limits as never)).toThrow(message)
  })

  it('accept a limiter of rate-limiter-flexible in memory', async () => {
    const newKeys = new RateLimiterMemory({ points: 2, duration: 600 })
    const { send, records } = setup({ newKeys, lookUps: newKeys })
    const statuses = [(await send('a')).status, (await send('b')).status, (await send('c')).status]
    expect(statuses).toEqual([200, 200, 429])
    expect(await records()).toEqual(['a', 'b'])
  })
})
