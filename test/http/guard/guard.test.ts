import { expect, it } from 'vitest'
import { sleep } from '../../../src/core/time/clock.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import type { Answer, HttpReply, Produced } from '../../../src/http/guard/exchange.ts'
import { singleTenant, type GuardOptions } from '../../../src/http/guard/guard-options.ts'
import { createGuard, type Guard } from '../../../src/http/guard/guard.ts'
import type { HandlerContext } from '../../../src/http/guard/handler-context.ts'
import { encodeHttpReply } from '../../../src/http/reply/http-reply.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { JoinableStore } from '../../core/attempt/joinable-store.ts'
import { failing, flipping, flippingLater } from '../reply/encryptions.ts'
import { exchangeOf, InstantHandler, ok } from './instant-handler.ts'

// The guard as an adapter uses it, without a framework or sockets. The tests in test/adapters run
// Express on real servers.

type Request = Readonly<Record<string, string>>

function setup(options: Partial<GuardOptions<Request>> = {}) {
  const clock = new FakeClock()
  const engine = createEngine({ store: memoryStore({ clock }), clock })
  const guardWith = (more: Partial<GuardOptions<Request>> = {}): Guard<Request> =>
    createGuard({ engine, tenant: singleTenant, ...options, ...more })
  const guard = guardWith()
  const run = async (reply: HttpReply | Error, on = guard) => {
    const handler = new InstantHandler(reply)
    const request = { 'idempotency-key': 'k' }
    const answer = await on.handle(request, exchangeOf(request), handler)
    return { answer, handler, entered: handler.entered }
  }
  return { engine, guardWith, run }
}

const replyOf = (answer: Answer): HttpReply => {
  if (answer.kind !== 'reply') throw new Error(`expected a reply, got ${answer.kind}`)
  return answer.reply
}
const textOf = (answer: Answer) => Buffer.from(replyOf(answer).body).toString()
const codeOf = (answer: Answer) => (JSON.parse(textOf(answer)) as { code?: unknown }).code

it('encrypts the stored reply, and decrypts it for a replay', async () => {
  const { run, engine } = setup({ encryption: flippingLater })
  const secret = ok('a very secret reply')
  expect((await run(secret)).answer.kind).toBe('deliver')
  const [listed] = await engine.list({ state: 'completed' })
  const record = await engine.read({ recordId: listed!.recordId })
  expect(Buffer.from(record!.result!).includes('secret')).toBe(false)
  const { answer, entered } = await run(secret)
  expect([textOf(answer), entered]).toEqual(['a very secret reply', 0])
})

it.each([
  ['cannot be decrypted', { encryption: failing }],
  ['meets a route without encryption', {}],
])('never runs work again when its recorded reply %s', async (_why, options) => {
  const { run, guardWith } = setup()
  await run(ok('encrypted'), guardWith({ encryption: flipping }))
  const { answer, entered } = await run(ok('again'), guardWith(options))
  expect([replyOf(answer).status, codeOf(answer)]).toEqual([409, 'idempotency_reply_unreadable'])
  expect(entered).toBe(0)
})

it('never runs work again when its recorded bytes are no reply', async () => {
  const { run, engine } = setup({ onError: 'unknown' })
  await run({ ...ok('x'), status: 500 })
  const [unknown] = await engine.list({ state: 'unknown' })
  const result = new TextEncoder().encode('nonsense')
  await engine.resolve({ recordId: unknown!.recordId }, { kind: 'completed', result })
  const { answer, entered } = await run(ok('again'))
  expect([codeOf(answer), entered]).toEqual(['idempotency_reply_unreadable', 0])
})

it('leaves the outcome unknown when the reply of completed work cannot be encrypted', async () => {
  const { run, engine, guardWith } = setup()
  const { answer, entered } = await run(ok('done'), guardWith({ encryption: failing }))
  expect([answer.kind, entered]).toEqual(['error', 1])
  expect(await engine.list({ state: 'unknown' })).toHaveLength(1)
})

it('upgrades a reply of an earlier version, and leaves a current one unchanged', async () => {
  const seen: number[] = []
  const { run, guardWith } = setup()
  await run(ok('{"total":5}', [['content-type', 'application/json']]))
  const upgradeReply = (reply: HttpReply, version: number): HttpReply => {
    seen.push(version)
    return { ...reply, body: Buffer.from('{"amount":5}') }
  }
  const today = await run(ok(''), guardWith({ upgradeReply }))
  expect([textOf(today.answer), seen]).toEqual(['{"total":5}', []])
  const later = await run(ok(''), guardWith({ upgradeReply, replyVersion: 2 }))
  expect([textOf(later.answer), seen]).toEqual(['{"amount":5}', [1]])
  expect(replyOf(later.answer).headers).toContainEqual(['Idempotent-Replayed', 'true'])
})

it('replays the headers that the route names and the default headers', async () => {
  const { run } = setup({ storeHeaders: ['X-Payment-Id'] })
  const headers = [
    ['x-payment-id', 'pay_1'],
    ['x-request-id', 'req_1'],
    ['location', '/payments/pay_1'],
  ] as const
  await run(ok('', headers))
  const names = replyOf((await run(ok(''))).answer).headers.map(([name]) => name)
  expect(names).toEqual(['x-payment-id', 'location', 'Idempotent-Replayed', 'Idempotency-Expires'])
})

it('replays the verdict on an unknown outcome', async () => {
  const { run, engine } = setup({ onError: 'unknown' })
  await run({ ...ok('maybe'), status: 502 })
  expect(codeOf((await run(ok(''))).answer)).toBe('idempotency_outcome_unknown')
  const [unknown] = await engine.list({ state: 'unknown' })
  const result = await encodeHttpReply(unknown!, {
    status: 201,
    headers: { Location: '/payments/1' },
    body: { id: 'pay_1' },
  })
  await engine.resolve({ recordId: unknown!.recordId }, { kind: 'completed', result })
  const { answer, entered } = await run(ok('again'))
  expect([replyOf(answer).status, textOf(answer), entered]).toEqual([201, '{"id":"pay_1"}', 0])
  expect(replyOf(answer).headers).toContainEqual(['location', '/payments/1'])
})

it('runs again after the verdict that nothing had happened', async () => {
  const { run, engine } = setup({ onError: 'unknown' })
  await run({ ...ok('maybe'), status: 502 })
  const [unknown] = await engine.list({ state: 'unknown' })
  await engine.resolve({ recordId: unknown!.recordId }, { kind: 'failed_retryable' })
  expect((await run(ok('now'))).entered).toBe(1)
})

it('gives the handler the same key context on every attempt', async () => {
  const { run } = setup({ onError: 'retry' })
  const contexts = [await run({ ...ok(''), status: 500 }), await run(ok('now'))].map(
    ({ handler }) => handler.context!,
  )
  const [first, second] = contexts as [HandlerContext, HandlerContext]
  expect([first.attempt, second.attempt]).toEqual([1, 2])
  expect(first).toMatchObject({
    key: 'k',
    scope: { tenant: 'single', operation: 'POST /payments' },
    recordId: second.recordId,
  })
  expect(first.downstreamKey('charge')).toBe(second.downstreamKey('charge'))
  expect(first.downstreamKey('charge')).not.toBe(first.downstreamKey('refund'))
  expect(first.deterministicId('row')).toBe(second.deterministicId('row'))
  expect(first.signal.aborted).toBe(false)
})

it('sends a later expiry when the handler extends the retention', async () => {
  const { guardWith } = setup()
  const handler = new InstantHandler(ok('done'))
  const request = { 'idempotency-key': 'k' }
  const guard = guardWith({ retentionMs: 2 * 60 * 60 * 1000 })
  const entering = handler.enter.bind(handler)
  handler.enter = (context) => {
    entering(context)
    context.extendRetention(7 * 24 * 60 * 60 * 1000)
  }
  const answer = await guard.handle(request, exchangeOf(request), handler)
  expect(answer).toEqual({
    kind: 'deliver',
    headers: [['Idempotency-Expires', 'Thu, 08 Jan 2026 00:00:00 GMT']],
  })
})

it('passes on the error of a handler that sends no reply', async () => {
  const { run, engine } = setup()
  const error = new Error('socket destroyed')
  expect((await run(error)).answer).toEqual({ kind: 'error', error })
  expect(await engine.list({ state: 'failed_retryable' })).toHaveLength(1)
})

it('treats a store error inside the handler as an error of the handler', async () => {
  const cause = new Error('connection refused')
  const error = new StoreFailedError({ store: 'orders', operation: 'insert', cause })
  const { run } = setup({ onStoreFailure: 'open' })
  const { answer, entered } = await run(error)
  expect(answer).toEqual({ kind: 'error', error })
  expect(entered).toBe(1)
})

it.each([
  [{ kind: 'too_large' }, 'reply'],
  [{ kind: 'aborted' }, 'error'],
] as const)('claims no key for a body that is %o', async (body, kind) => {
  const { guardWith, engine } = setup()
  const request = { 'idempotency-key': 'k' }
  const handler = new InstantHandler(ok(''))
  const answer = await guardWith().handle(request, exchangeOf(request, body), handler)
  expect([answer.kind, handler.entered]).toEqual([kind, 0])
  expect(await engine.list({ state: 'in_progress' })).toEqual([])
})

it.each(['keyFrom', 'principal', 'operation'] as const)(
  'fails closed when %s throws',
  async (option) => {
    const { run, engine } = setup({
      onStoreFailure: 'open',
      [option]: () => {
        throw new Error(`${option} is broken`)
      },
    })
    const { answer, entered } = await run(ok(''))
    expect(answer).toEqual({ kind: 'error', error: new Error(`${option} is broken`) })
    expect(entered).toBe(0)
    expect(await engine.list({ state: 'in_progress' })).toEqual([])
  },
)

it('lets methods through that it does not protect', async () => {
  const { guardWith } = setup()
  const handler = new InstantHandler(ok(''))
  const exchange = { ...exchangeOf({}), method: 'GET' }
  expect(await guardWith().handle({}, exchange, handler)).toEqual({ kind: 'pass' })
  expect(handler.entered).toBe(0)
})

/** A handler that does something before it replies. */
class BusyHandler extends InstantHandler {
  readonly #run: (context: HandlerContext) => Promise<unknown>
  #done: Promise<unknown> = Promise.resolve()

  constructor(reply: HttpReply, run: (context: HandlerContext) => Promise<unknown>) {
    super(reply)
    this.#run = run
  }

  override enter(context: HandlerContext): void {
    super.enter(context)
    this.#done = this.#run(context)
  }

  override async whole(): Promise<Produced> {
    await this.#done
    return super.whole()
  }
}

it('records the reply of a handler that continues after a refused completeIn', async () => {
  const { run, guardWith } = setup()
  const request = { 'idempotency-key': 'k' }
  const handler = new BusyHandler(ok('queued, not paid'), async (context) => {
    await context.completeIn({}, { status: 201, body: 'paid' }).catch(() => undefined)
  })
  const answer = await guardWith().handle(request, exchangeOf(request), handler)
  expect(answer.kind).toBe('deliver')
  expect(textOf((await run(ok('again'))).answer)).toBe('queued, not paid')
})

// Lost only by its own clock: the record would still accept the reply of rolled-back rows.
it('acknowledges nothing when completeIn was refused because the lease was lost', async () => {
  const clock = new FakeClock()
  const store = new JoinableStore(clock)
  store.renew = () => new Promise(() => undefined)
  const engine = createEngine({ store, clock, sweepEveryMs: 0, reapEveryMs: 0 })
  const guard = createGuard<Request>({ engine, tenant: singleTenant })
  const request = { 'idempotency-key': 'k' }
  let refusal: unknown
  const handler = new BusyHandler(ok('{}'), async (context) => {
    await sleep(clock, 60_000)
    const tx = store.begin()
    tx.pay('k')
    await context.completeIn(tx, { status: 201, body: 'paid' }).catch((error: unknown) => {
      refusal = error
      tx.rollback()
    })
  })
  const answering = guard.handle(request, exchangeOf(request), handler)
  await clock.advanceAsync(60_000)
  const answer = await answering
  expect(refusal).toMatchObject({ code: 'LEASE_LOST' })
  expect(answer).toMatchObject({ kind: 'error', error: { code: 'OUTCOME_UNKNOWN' } })
  expect([...store.records.values()]).toMatchObject([{ state: 'unknown' }])
})

it.each([
  ['throws', () => JSON.parse('no') as boolean],
  ['returns a promise', (async () => true) as unknown as () => boolean],
])('records a refusal when releaseOn %s', async (_what, releaseOn) => {
  const { guardWith, run } = setup()
  const guard = guardWith({ releaseOn })
  const refusal = { ...ok('no'), status: 404 }
  expect((await run(refusal, guard)).answer).toMatchObject({ kind: 'deliver' })
  const { answer } = await run(refusal, guard)
  expect(answer).toMatchObject({ kind: 'reply', reply: { status: 404 } })
})
