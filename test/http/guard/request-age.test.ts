import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { DAY_MS, HOUR_MS } from '../../../src/core/time/durations.ts'
import type { GuardOptions } from '../../../src/http/guard/guard-options.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { exchangeOf, InstantHandler, ok } from './instant-handler.ts'

type Request = Readonly<Record<string, string>>

function setup(options: Partial<GuardOptions<Request>> = {}) {
  const clock = new FakeClock()
  const events: EngineEvent[] = []
  const engine = createEngine({
    store: memoryStore({ clock }),
    clock,
    onEvent: (event) => void events.push(event),
  })
  const guard = createGuard<Request>({
    ...{ engine, tenant: () => 'acme', maxRequestAgeMs: HOUR_MS },
    ...options,
  })
  const send = async (headers: Request, reply = ok('x')) => {
    const request = { 'idempotency-key': 'k', ...headers }
    const handler = new InstantHandler(reply)
    const answer = await guard.handle(request, exchangeOf(request), handler)
    const sent = answer.kind === 'reply' ? answer.reply : undefined
    const text = sent && Buffer.from(sent.body).toString()
    const code = text?.startsWith('{') ? (JSON.parse(text) as { code: string }).code : undefined
    return { status: sent?.status ?? 200, code, headers: sent?.headers, entered: handler.entered }
  }
  const firstSent = (ms: number) => ({ 'repeatability-first-sent': new Date(ms).toUTCString() })
  return { clock, engine, events, send, firstSent }
}

describe('maxRequestAgeMs', () => {
  it('refuses a request that is too old with 412, runs nothing and records nothing', async () => {
    const { clock, send, firstSent, engine, events } = setup()
    const sent = firstSent(clock.nowMs() - HOUR_MS - 1_000)
    expect(await send(sent)).toMatchObject({
      status: 412,
      code: 'idempotency_request_too_old',
      entered: 0,
    })
    const states = ['in_progress', 'completed', 'failed_retryable'] as const
    for (const state of states) expect(await engine.list({ state })).toEqual([])
    expect(events).toMatchObject([{ kind: 'request_refused', reason: 'too_old', tenant: 'acme' }])
  })

  it('runs a request of exactly that age', async () => {
    const { clock, send, firstSent } = setup()
    expect(await send(firstSent(clock.nowMs() - HOUR_MS))).toMatchObject({ entered: 1 })
  })

  it('refuses a request from further in the future than the skew', async () => {
    const { clock, send, firstSent } = setup({ requestSkewMs: 10_000 })
    expect(await send(firstSent(clock.nowMs() + 11_000))).toMatchObject({ status: 412 })
    expect(await send(firstSent(clock.nowMs() + 10_000))).toMatchObject({ entered: 1 })
  })

  it('allows a clock that is five minutes ahead by default', async () => {
    const { clock, send, firstSent } = setup()
    expect(await send(firstSent(clock.nowMs() + 301_000))).toMatchObject({ status: 412 })
    expect(await send(firstSent(clock.nowMs() + 300_000))).toMatchObject({ entered: 1 })
  })

  it('replays a reply on record to a request of any age, within the retention', async () => {
    const { clock, send, firstSent } = setup()
    const sent = firstSent(clock.nowMs())
    await send(sent)
    await clock.advanceAsync(DAY_MS - 1)
    const replay = await send(sent)
    expect([replay.status, replay.entered]).toEqual([200, 0])
    expect(replay.headers).toContainEqual(['Idempotent-Replayed', 'true'])
    // A captured request, sent again after its record has expired.
    await clock.advanceAsync(1)
    expect(await send(sent)).toMatchObject({ status: 412, entered: 0 })
  })

  it('does not run a released key again when its request has become too old', async () => {
    const { clock, send, firstSent } = setup()
    const sent = firstSent(clock.nowMs())
    await send(sent, { ...ok('busy'), status: 503 })
    await clock.advanceAsync(HOUR_MS + 1_000)
    expect(await send(sent)).toMatchObject({ status: 412, entered: 0 })
  })

  it.each([
    'yesterday',
    '1700000000',
    '2026-01-01T00:00:00Z',
    'Fri, 01 Jan 2026 00:00:00 GMT',
    'Sun, 31 Feb 2026 00:00:00 GMT',
    'Thu, 01 Jan 2026 00:00:00 +0000',
    'Thu, 01 Jan 2026 00:00:00 GMT, Thu, 01 Jan 2026 00:00:00 GMT',
    '',
  ])('refuses the time %j with 400', async (time) => {
    const { send } = setup()
    expect(await send({ 'repeatability-first-sent': time })).toMatchObject({
      status: 400,
      code: 'idempotency_request_time_missing',
      entered: 0,
    })
  })

  it('takes the time from a function of the route, and refuses a request without one', async () => {
    const requestTime = (request: Request) =>
      request['iat'] === undefined ? undefined : new Date(Number(request['iat']))
    const { clock, send } = setup({ requestTime })
    expect(await send({ iat: String(clock.nowMs() - 2 * HOUR_MS) })).toMatchObject({ status: 412 })
    expect(await send({})).toMatchObject({ status: 400 })
    expect(await send({ iat: String(clock.nowMs()) })).toMatchObject({ entered: 1 })
  })

  it('runs nothing when the function of the route returns no valid date', async () => {
    const { send } = setup({ requestTime: () => new Date(Number.NaN) })
    expect(await send({})).toMatchObject({ entered: 0 })
  })

  it('does not run an old request unprotected when the store fails', async () => {
    const { clock, send, firstSent, engine } = setup({ onStoreFailure: 'open' })
    engine.store.claim = async () => {
      throw new Error('gone')
    }
    const sent = firstSent(clock.nowMs() - 2 * HOUR_MS)
    expect(await send(sent)).toMatchObject({ status: 503, entered: 0 })
  })

  it.each([
    [{ maxRequestAgeMs: 0 }, /maxRequestAgeMs/],
    [{ requestSkewMs: -1 }, /requestSkewMs/],
    [{ requestTime: 'header' }, /requestTime/],
    [{ maxRequestAgeMs: undefined, requestTime: () => undefined }, /needs maxRequestAgeMs/],
    [{ maxRequestAgeMs: undefined, requestSkewMs: 1 }, /needs maxRequestAgeMs/],
  ])('rejects the options %j', (options, message) => {
    expect(() => setup(options as never)).toThrow(message)
  })
})
