import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import { markReconciled } from '../../../src/core/engine/engine-registry.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { Answer, HttpReply } from '../../../src/http/guard/exchange.ts'
import { singleTenant, type GuardOptions } from '../../../src/http/guard/guard-options.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { FaultyStore } from '../../core/engine/faulty-store.ts'
import { exchangeOf, InstantHandler, ok } from './instant-handler.ts'

type Request = Readonly<Record<string, string>>

function setup(options: Partial<GuardOptions<Request>> = {}) {
  const clock = new FakeClock()
  const store = new FaultyStore(memoryStore({ clock }), clock)
  const events: EngineEvent[] = []
  const engine = createEngine({ store, clock, onEvent: (event) => void events.push(event) })
  const guard = createGuard<Request>({ engine, tenant: singleTenant, ...options })
  const send = async (key: string, reply: HttpReply | Error = ok('done')) => {
    const request = { 'idempotency-key': key }
    const handler = new InstantHandler(reply)
    const answer = await guard.handle(request, exchangeOf(request), handler)
    return { answer, entered: handler.entered }
  }
  return { clock, store, engine, events, send }
}

function problemOf(answer: Answer) {
  if (answer.kind !== 'reply') throw new Error(`expected a reply, got ${answer.kind}`)
  const { status, headers, body } = answer.reply
  const { code, detail } = JSON.parse(Buffer.from(body).toString()) as Record<string, string>
  const retryAfter = headers.find(([name]) => name === 'Retry-After')?.[1]
  return { status, code, detail, retryAfter }
}

/** A store that fails for claims and probes, with an open breaker. */
async function opened(options: Partial<GuardOptions<Request>> = {}) {
  const fixture = setup(options)
  fixture.store.always('claim', 'fail')
  fixture.store.always('renew', 'fail')
  for (let n = 0; n < 3; n++) await fixture.send(`${n}`)
  await fixture.clock.advanceAsync(0)
  return fixture
}

it('answers 503 with Retry-After at once while the breaker is open', async () => {
  const { send, store } = await opened()
  const asked = store.asked('claim').length
  const { answer, entered } = await send('another')
  expect(problemOf(answer)).toMatchObject({
    status: 503,
    code: 'idempotency_store_unavailable',
    retryAfter: '1',
  })
  expect([entered, store.asked('claim').length]).toEqual([0, asked])
})

describe('a route with onStoreFailure: open', () => {
  it('onStoreFailure open calls the store and replays while the breaker is open', async () => {
    const { send, store, clock } = setup({ onStoreFailure: 'open' })
    expect((await send('k')).answer.kind).toBe('deliver')
    store.next('claim', 'fail', 'fail', 'fail')
    store.always('renew', 'fail')
    for (let n = 0; n < 3; n++) await send(`${n}`)
    await clock.advanceAsync(0)
    const { answer, entered } = await send('k')
    expect([answer.kind, entered]).toEqual(['reply', 0])
  })

  it('onStoreFailure open runs nothing because another claim was refused', async () => {
    const { send, engine, events } = setup({ onStoreFailure: 'open' })
    const refusal = { store: 'faulty', operation: 'claim', failure: 'refused', cause: undefined }
    engine.run = () => Promise.reject(new StoreFailedError(refusal as never))
    expect(problemOf((await send('k')).answer).status).toBe(503)
    expect(events).toEqual([])
  })

  it('onStoreFailure open runs unprotected only after its own claim has failed', async () => {
    const { send, store, events } = await opened({ onStoreFailure: 'open' })
    const asked = store.asked('claim').length
    const { answer } = await send('another')
    expect(answer.kind).toBe('pass')
    expect(store.asked('claim')).toHaveLength(asked + 1)
    expect(events.map(({ kind }) => kind)).not.toContain('claim_refused')
  })
})

it('reports that the server is stopping when the engine is closed', async () => {
  const { send, engine, events } = setup()
  await engine.close()
  const { answer, entered } = await send('k')
  expect(problemOf(answer)).toMatchObject({
    status: 503,
    code: 'idempotency_server_stopping',
    retryAfter: '1',
    detail: expect.stringContaining('another server will take it') as string,
  })
  expect(entered).toBe(0)
  expect(events.at(-1)).toMatchObject({ kind: 'claim_refused', reason: 'engine_closed' })
})

it('says that an unknown outcome is being determined only if a reconciler exists', async () => {
  const lost = Object.assign(new Error('socket hang up'), { code: 'ECONNRESET' })
  const { send, engine } = setup()
  await send('k', lost)
  const without = problemOf((await send('k')).answer)
  expect(without).toMatchObject({ status: 409, code: 'idempotency_outcome_unknown' })
  expect(without.detail).not.toContain('being determined')
  markReconciled(engine)
  expect(problemOf((await send('k')).answer).detail).toContain('outcome is being determined')
})
