import { describe, expect, it } from 'vitest'
import type { Encryption } from '../../../src/core/encryption.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { RECORD_STATES } from '../../../src/core/record/record.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import type { GuardOptions } from '../../../src/http/guard/guard-options.ts'
import { createStatus } from '../../../src/http/status/status.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { aesGcm, flipping } from '../reply/encryptions.ts'
import { exchangeOf, InstantHandler, ok } from './instant-handler.ts'

type Request = Readonly<Record<string, string>>

/** AES whose data keys come from a key service, which the test stops and starts. */
function keyService() {
  const cipher = aesGcm()
  const service = {
    isDown: false,
    prepared: [] as (string | undefined)[],
    encryption: {
      ...cipher,
      prepare: async ({ tenant }) => {
        service.prepared.push(tenant)
        if (service.isDown) throw new Error('connect ECONNREFUSED')
      },
    } satisfies Encryption,
  }
  return service
}

function setup(
  engineOptions: Partial<EngineOptions> = {},
  guardOptions: Partial<GuardOptions<Request>> = {},
) {
  const clock = new FakeClock()
  const store = memoryStore({ clock })
  const events: EngineEvent[] = []
  const engine = createEngine({
    ...{ store, clock, sweepEveryMs: 0, reapEveryMs: 0 },
    onEvent: (event) => void events.push(event),
    ...engineOptions,
  })
  const guard = createGuard<Request>({ engine, tenant: () => 'acme', ...guardOptions })
  const send = async (key: string, handler = new InstantHandler(ok('paid'))) => {
    const exchange = exchangeOf({ 'idempotency-key': key })
    const answer = await guard.handle({}, exchange, handler)
    const reply = answer.kind === 'reply' ? answer.reply : undefined
    const body = reply && Buffer.from(reply.body).toString()
    const retryAfter = reply?.headers.find(([name]) => name === 'Retry-After')?.[1]
    const { entered } = handler
    return { kind: answer.kind, status: reply?.status, body, retryAfter, entered }
  }
  const stored = async () => {
    const lists = await Promise.all(RECORD_STATES.map((state) => engine.list({ state })))
    return lists.flat()
  }
  const status = createStatus<Request>({ engine, tenant: () => 'acme' }, ({ id }) => id)
  return { clock, store, engine, events, send, stored, status }
}

const UNAVAILABLE = { kind: 'reply', status: 503, retryAfter: '1', entered: 0 }

describe('a key service that is down', () => {
  it('runs no handler, makes no payment unknown, and lets replays pass', async () => {
    const service = keyService()
    const { send, stored, events } = setup({ encryption: service.encryption })
    expect(await send('before')).toMatchObject({ kind: 'deliver', entered: 1 })
    const before = await stored()
    events.length = 0
    service.isDown = true

    for (let n = 0; n < 3; n++) {
      const refused = await send('new')
      expect(refused).toMatchObject(UNAVAILABLE)
      expect(JSON.parse(refused.body!)).toMatchObject({ code: 'idempotency_store_unavailable' })
    }
    expect(await send('before')).toMatchObject({ status: 200, body: 'paid', entered: 0 })
    expect(await stored()).toEqual(before)
    expect(new Set(events.map(({ kind }) => kind))).toEqual(
      new Set(['encryption_failed', 'reserve_replay']),
    )
    // The client learns nothing about keys, and the operator learns nothing about the reply.
    expect(JSON.stringify(events)).not.toContain('paid')

    service.isDown = false
    expect(await send('new')).toMatchObject({ kind: 'deliver', entered: 1 })
    expect(await send('new')).toMatchObject({ status: 200, body: 'paid', entered: 0 })
  })

  it('records the reply of a handler that runs when the service fails', async () => {
    const service = keyService()
    const { send, engine } = setup({ encryption: service.encryption })
    class Failing extends InstantHandler {
      override enter(...args: Parameters<InstantHandler['enter']>): void {
        service.isDown = true
        super.enter(...args)
      }
    }
    expect(await send('k', new Failing(ok('paid')))).toMatchObject({ kind: 'deliver', entered: 1 })
    expect(await engine.list({ state: 'unknown' })).toEqual([])
    expect(await engine.list({ state: 'completed' })).toHaveLength(1)
  })

  it('gives a duplicate of a running request 409, as always', async () => {
    const service = keyService()
    const { send, clock } = setup({ encryption: service.encryption })
    let end: () => void = () => undefined
    class Slow extends InstantHandler {
      override whole() {
        return new Promise<void>((resolve) => (end = resolve)).then(() => super.whole())
      }
    }
    const slow = new Slow(ok('paid'))
    const first = send('k', slow)
    while (slow.entered === 0) await clock.advanceAsync(0)
    service.isDown = true
    expect(await send('k')).toMatchObject({ status: 409, entered: 0 })
    end()
    expect(await first).toMatchObject({ kind: 'deliver' })
  })

  it.each(['is down', 'works'] as const)(
    'runs no handler with onStoreFailure open while the store %s',
    async (state) => {
      const service = keyService()
      service.isDown = true
      const { send, store, events } = setup(
        { encryption: service.encryption },
        { onStoreFailure: 'open' },
      )
      if (state === 'is down') {
        store.claim = () =>
          Promise.reject(new StoreFailedError({ store: 'x', operation: 'claim', cause: 'down' }))
      }
      expect(await send('k')).toMatchObject({ status: 503, entered: 0 })
      expect(events.map(({ kind }) => kind)).not.toContain('unprotected_run')
    },
  )

  it('is not asked for a request that may not run anyway', async () => {
    const service = keyService()
    service.isDown = true
    const { send, events } = setup(
      { encryption: service.encryption },
      { maxRequestAgeMs: 1_000, requestTime: () => new Date(0) },
    )
    expect(await send('k')).toMatchObject({ status: 412, entered: 0 })
    expect(service.prepared).toEqual([])
    expect(events).toMatchObject([{ kind: 'request_refused', reason: 'too_old' }])
  })

  it('is waited for five seconds at most', async () => {
    const prepare = () => new Promise<void>(() => undefined)
    const { send, clock } = setup({ encryption: { ...flipping, prepare } })
    const refused = send('k')
    while (clock.pendingTimers === 0) await clock.advanceAsync(0)
    await clock.advanceAsync(5_000)
    expect(await refused).toMatchObject(UNAVAILABLE)
  })
})

it('prepares the encryption once for a request, and only that of the route', async () => {
  const [service, own] = [keyService(), keyService()]
  const plain = setup({ encryption: service.encryption })
  await plain.send('k')
  expect(service.prepared).toEqual(['acme'])
  const routed = setup({ encryption: service.encryption }, { encryption: own.encryption })
  await routed.send('k')
  expect([service.prepared, own.prepared]).toEqual([['acme'], ['acme']])
})

describe('the encryption of an engine', () => {
  it('encrypts the replies of its guards, and its status handlers read them', async () => {
    const { send, engine, status } = setup({ encryption: aesGcm() })
    await send('k')
    const { recordId } = (await engine.list({ state: 'completed' }))[0]!
    const { result } = (await engine.read({ recordId }))!
    expect(Buffer.from(result!).includes('paid')).toBe(false)
    expect(await send('k')).toMatchObject({ body: 'paid', entered: 0 })
    const shown = await status.reply({ id: recordId }, { method: 'GET', accepted: undefined })
    expect(Buffer.from(shown.body).toString()).toBe('paid')
  })

  it('gives way to the encryption of a guard', async () => {
    const store = memoryStore({ clock: new FakeClock() })
    const own = aesGcm()
    const first = setup({ store, encryption: aesGcm() }, { encryption: own })
    await first.send('k')
    const other = setup({ store, encryption: own })
    expect(await other.send('k')).toMatchObject({ body: 'paid' })
  })

  it('refuses plain replies if it is required, unless the guard does not require it', async () => {
    const store = memoryStore({ clock: new FakeClock() })
    await setup({ store }).send('k')
    const required = { store, encryption: aesGcm(), requireEncryption: true }
    const refused = setup(required)
    expect(await refused.send('k')).toMatchObject({ status: 409, entered: 0 })
    const { recordId } = (await refused.stored())[0]!
    const question = { method: 'GET', accepted: undefined }
    expect((await refused.status.reply({ id: recordId }, question)).status).toBe(409)
    const lenient = setup(required, { requireEncryption: false })
    expect(await lenient.send('k')).toMatchObject({ body: 'paid' })
  })

  it('lets a guard require encryption that only the engine has', async () => {
    const { send } = setup({ encryption: aesGcm() }, { requireEncryption: true })
    expect(await send('k')).toMatchObject({ kind: 'deliver' })
    expect(() => setup({}, { requireEncryption: true })).toThrow(/needs encryption/)
  })
})
