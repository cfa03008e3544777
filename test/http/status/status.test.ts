import { gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { newRecordId } from '../../../src/core/record/identity.ts'
import type { RecordState } from '../../../src/core/record/record.ts'
import type { ClaimRequest, RecordView, Store } from '../../../src/core/store/store.ts'
import type { HttpReply } from '../../../src/http/guard/exchange.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import {
  encodeAbandonedReply,
  encodeHttpReply,
  type HttpReplyInput,
} from '../../../src/http/reply/http-reply.ts'
import { encodeReply } from '../../../src/http/reply/reply-codec.ts'
import { createStatus, lastSegment } from '../../../src/http/status/status.ts'
import type { StatusOptions } from '../../../src/http/status/status-options.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { claimRequest } from '../../../src/testing/index.ts'
import { flipping, flippingLater } from '../reply/encryptions.ts'

// The decisions of the status route, without a framework or sockets. The shared cases test the
// adapters (src/testing/adapter-cases/status-cases.ts).

interface Question {
  readonly tenant: string
  readonly id: string
}

const HOUR_MS = 3_600_000
const LEASE_MS = 60_000
const MISSING = newRecordId(0)
const TENANT = claimRequest().tenant

interface Setup extends Partial<StatusOptions<Question>> {
  /** Replaces calls of the store. */
  readonly calls?: Partial<Store>
  readonly history?: boolean
}

function setup({ calls = {}, history = false, ...options }: Setup = {}) {
  const clock = new FakeClock()
  const memory = memoryStore({ clock, history })
  const asked: string[] = []
  const store: Store = new Proxy(memory, {
    get(target, name) {
      const value: unknown = Reflect.get(name in calls ? calls : target, name)
      if (typeof value !== 'function') return value
      return (...args: unknown[]) => {
        asked.push(String(name))
        return Reflect.apply(value, target, args) as unknown
      }
    },
  })
  const events: EngineEvent[] = []
  const onEvent = (event: EngineEvent) => void events.push(event)
  const engine = createEngine({ store, clock, onEvent, sweepEveryMs: 0, reapEveryMs: 0 })
  const status = createStatus<Question>(
    { engine, tenant: ({ tenant }) => tenant, ...options },
    ({ id }) => id,
  )
  const ask = (id: string, { tenant = TENANT, method = 'GET', accepted = '' } = {}) =>
    status.reply({ id, tenant }, { method, accepted })
  return { clock, memory, engine, ask, asked, events }
}

const textOf = ({ body }: HttpReply) => Buffer.from(body).toString()
const codeOf = (reply: HttpReply) => {
  const { code, error } = JSON.parse(textOf(reply)) as { code?: string; error?: { code: string } }
  return code ?? error?.code
}
const headerOf = ({ headers }: HttpReply, wanted: string) =>
  headers.find(([name]) => name.toLowerCase() === wanted)?.[1]

async function claim(store: Store, overrides: Partial<ClaimRequest> = {}): Promise<ClaimRequest> {
  const request = claimRequest({ leaseMs: LEASE_MS, ...overrides })
  const [outcome] = await store.claim([request])
  expect(outcome!.kind).toBe(overrides.mode === 'accept' ? 'pending' : 'claimed')
  return request
}

async function complete(store: Store, reply: HttpReplyInput | Uint8Array, retentionMs = HOUR_MS) {
  const request = await claim(store)
  const result = reply instanceof Uint8Array ? reply : await encodeHttpReply(request, reply)
  const lease = { ...request, attempt: 1 }
  const [outcome] = await store.settle([{ kind: 'complete', lease, result, retentionMs }])
  expect(outcome!.kind).toBe('settled')
  return request
}

/** A store that always returns this record. */
function showing(state: RecordState, more: Partial<RecordView> = {}): Partial<Store> {
  return {
    read: async ({ recordId = '' }) => {
      const now = new FakeClock().nowMs()
      const { identity, tenant, operation, key, fingerprint } = claimRequest()
      return {
        ...{ identity, recordId, tenant, operation, key, fingerprint, state },
        ...{ attempt: 1, lapses: 0, onLapse: 'unknown', afterExpiry: 'new', proof: undefined },
        ...{ idSeed: undefined, refuseForMs: undefined },
        ...{ recoveryPoint: undefined, result: undefined, errorCode: undefined, tries: 0 },
        leaseUntil: new Date(now),
        reconcileAt: undefined,
        createdAt: new Date(now),
        lastRunAt: new Date(now),
        completedAt: undefined,
        expiresAt: new Date(now + HOUR_MS),
        ...more,
      }
    },
  }
}

const inMs = (ms: number) => new Date(new FakeClock().nowMs() + ms)

describe('work that is not over', () => {
  it('reports accepted work as pending until a worker takes it', async () => {
    const { memory, ask } = setup()
    const { recordId } = await claim(memory, { mode: 'accept' })
    const reply = await ask(recordId)
    expect(reply.status).toBe(202)
    expect(JSON.parse(textOf(reply))).toEqual({
      status: 'pending',
      recordId,
      createdAt: inMs(0).toISOString(),
      code: 'idempotency_accepted',
    })
    expect(headerOf(reply, 'retry-after')).toBe('1')
    expect(headerOf(reply, 'cache-control')).toBe('no-store')
    expect(headerOf(reply, 'location')).toBeUndefined()
  })

  it('reports running work as in progress, with the rest of its lease', async () => {
    const { memory, ask, clock } = setup({ statusUrl: (id) => `/operations/${id}` })
    const { recordId } = await claim(memory)
    const early = await ask(recordId)
    expect(early.status).toBe(202)
    expect(JSON.parse(textOf(early))).toMatchObject({ status: 'in_progress', recordId })
    expect(headerOf(early, 'retry-after')).toBe('5')
    expect(headerOf(early, 'location')).toBe(`/operations/${recordId}`)
    clock.advance(LEASE_MS - 2_000)
    expect(headerOf(await ask(recordId), 'retry-after')).toBe('2')
    clock.advance(LEASE_MS)
    // The lease has ended and no sweep has run: the client still has nothing to act on.
    const late = await ask(recordId)
    expect([late.status, headerOf(late, 'retry-after')]).toEqual([202, '1'])
  })

  it.each([
    ['soon', inMs(3_000), '3'],
    ['much later', inMs(HOUR_MS), '5'],
    ['at once', inMs(-HOUR_MS), '1'],
    ['at an unknown time', undefined, '1'],
  ])('reports work that a worker continues %s as pending', async (_when, reconcileAt, seconds) => {
    // Even after its expiry: started work is brought to its end.
    const past = { recoveryPoint: 'charged', reconcileAt, expiresAt: inMs(-1) }
    const { ask } = setup({ calls: showing('failed_retryable', past) })
    const reply = await ask(MISSING)
    expect([reply.status, headerOf(reply, 'retry-after')]).toEqual([202, seconds])
    expect(JSON.parse(textOf(reply))).toMatchObject({ status: 'pending' })
  })

  it('reports accepted work as pending until the store ends it after its expiry', async () => {
    const { memory, ask, clock } = setup()
    const { recordId } = await claim(memory, { mode: 'accept', retentionMs: HOUR_MS })
    clock.advance(2 * HOUR_MS)
    expect((await ask(recordId)).status).toBe(202)
    const result = encodeAbandonedReply({ status: 408, body: 'timed out' })
    await memory.reap({ limit: 1, abandoned: { result, retentionMs: HOUR_MS } })
    const ended = await ask(recordId)
    expect([ended.status, textOf(ended)]).toEqual([408, 'timed out'])
  })
})

describe('work that is finished', () => {
  it('shows completed work like the replay of the guard', async () => {
    const { memory, engine, ask } = setup({ tenant: () => 'single' })
    const guard = createGuard({ engine, tenant: () => 'single' })
    const reply: HttpReply = {
      status: 201,
      headers: [
        ['content-type', 'application/json'],
        ['location', '/payments/1'],
      ],
      body: Buffer.from('{"paid":true}'),
    }
    const produced = { kind: 'reply', reply } as const
    const send = () =>
      guard.handle(
        {},
        {
          ...{ method: 'POST', path: '/', query: '', route: '/' },
          header: (name) => (name === 'idempotency-key' ? 'k' : undefined),
          body: () => ({ kind: 'none' }),
        },
        {
          ...{ enter: () => undefined, reset: () => undefined, failed: () => undefined },
          ...{ seesErrors: () => true, whole: async () => produced, produced: () => produced },
        },
      )
    expect((await send()).kind).toBe('deliver')
    const replay = await send()
    const [record] = await memory.list({ state: 'completed', limit: 1 })
    const shown = await ask(record!.recordId)
    expect(replay).toEqual({
      kind: 'reply',
      reply: { ...shown, headers: shown.headers.filter(([name]) => name !== 'Cache-Control') },
    })
    expect(headerOf(shown, 'cache-control')).toBe('no-store')
  })

  it('keeps the cache headers of the handler', async () => {
    const { memory, ask } = setup()
    const headers = { 'Cache-Control': 'private, max-age=60' }
    const { recordId } = await complete(memory, { status: 200, headers })
    const caching = (await ask(recordId)).headers.filter(([name]) => /^cache-control$/i.test(name))
    expect(caching).toEqual([['cache-control', 'private, max-age=60']])
  })

  it('decrypts and upgrades a reply of another version', async () => {
    const { memory, ask } = setup({
      encryption: flippingLater,
      replyVersion: 2,
      upgradeReply: (reply, from) => ({ ...reply, body: Buffer.from(`${from}: ${textOf(reply)}`) }),
    })
    const { recordId } = await complete(memory, {
      ...{ status: 200, body: 'old', replyVersion: 1 },
      encryption: flipping,
    })
    expect(textOf(await ask(recordId))).toBe('1: old')
  })

  it('reports that the body was too large to be stored', async () => {
    const { memory, ask } = setup()
    const stored = { status: 200, headers: [], body: new Uint8Array(0), schemaVersion: 1 }
    const result = encodeReply({ ...stored, elided: true }, undefined)
    const { recordId } = await complete(memory, result)
    const reply = await ask(recordId)
    expect([reply.status, codeOf(reply)]).toEqual([200, 'idempotency_body_elided'])
    expect(headerOf(reply, 'idempotent-body-elided')).toBe('true')
  })

  it('decodes a recorded reply for a client that cannot decode it', async () => {
    const { memory, ask } = setup()
    const { recordId } = await complete(memory, {
      ...{ status: 200, headers: { 'Content-Encoding': 'gzip', 'Content-Type': 'text/plain' } },
      body: gzipSync('plain'),
    })
    const plain = await ask(recordId, { accepted: 'identity' })
    expect([textOf(plain), headerOf(plain, 'content-encoding')]).toEqual(['plain', undefined])
    expect(headerOf(await ask(recordId, { accepted: 'gzip' }), 'content-encoding')).toBe('gzip')
  })

  it.each([
    ['is encrypted and the route cannot decrypt it', Uint8Array.of(1, 2, 3)],
    ['is no reply', Buffer.from('?')],
  ])('does not ask the client to send again when the recorded reply %s', async (_why, result) => {
    const { memory, ask } = setup()
    const reply = await ask((await complete(memory, result)).recordId)
    expect([reply.status, codeOf(reply)]).toEqual([409, 'idempotency_reply_unreadable'])
    expect(headerOf(reply, 'retry-after')).toBe('60')
  })

  it('answers 410 from the published expiry on', async () => {
    const { memory, ask, clock } = setup()
    const { recordId } = await complete(memory, { status: 201 })
    clock.advance(HOUR_MS - 1)
    const reply = await ask(recordId)
    expect([reply.status, headerOf(reply, 'idempotency-expires')]).toEqual([
      201,
      new Date(clock.nowMs() + 1).toUTCString(),
    ])
    clock.advance(1)
    const gone = await ask(recordId)
    expect([gone.status, codeOf(gone)]).toEqual([410, 'idempotency_key_expired'])
    expect(textOf(gone)).toContain('no longer kept')
    expect(headerOf(gone, 'cache-control')).toBe('no-store')
  })

  it('uses the clock of the store if it has one', async () => {
    const record = { ...claimRequest(), recordId: MISSING }
    const result = await encodeHttpReply(record, { status: 200 })
    const soon = { result, expiresAt: inMs(1_000) }
    const ahead = { ...showing('completed', soon), now: async () => inMs(1_000) }
    expect((await setup({ calls: ahead }).ask(MISSING)).status).toBe(410)
    const late = { result: soon.result, expiresAt: inMs(-1_000) }
    const behind = { ...showing('completed', late), now: async () => inMs(-2_000) }
    expect((await setup({ calls: behind }).ask(MISSING)).status).toBe(200)
  })

  it('answers 410 when the key stays refused', async () => {
    const { memory, ask, clock } = setup()
    const request = await claim(memory, { afterExpiry: 'refuse' })
    const lease = { ...request, attempt: 1 }
    const result = await encodeHttpReply(request, { status: 200 })
    await memory.settle([{ kind: 'complete', lease, result, retentionMs: HOUR_MS }])
    clock.advance(48 * HOUR_MS)
    expect(await memory.reap({ limit: 1 })).toMatchObject({ expired: 1 })
    expect((await ask(request.recordId)).status).toBe(410)
  })

  it('answers 410 while the history has the record, and 404 after that', async () => {
    for (const [history, status] of [
      [true, 410],
      [false, 404],
    ] as const) {
      const { memory, ask, clock } = setup({ history })
      const { recordId } = await complete(memory, { status: 200, body: 'secret' })
      clock.advance(48 * HOUR_MS)
      expect(await memory.reap({ limit: 1 })).toMatchObject({ removed: 1 })
      const reply = await ask(recordId)
      expect(reply.status).toBe(status)
      expect(textOf(reply)).not.toContain('secret')
      expect((await ask(recordId, { tenant: 'other' })).status).toBe(404)
    }
  })
})

describe('work that came to no end', () => {
  it.each([
    ['in half a minute', inMs(30_000), '30'],
    ['for some time', inMs(-1), '60'],
    ['only by an operator', undefined, '60'],
  ])('reports an unknown outcome that is reconciled %s', async (_when, reconcileAt, seconds) => {
    const { ask } = setup({ calls: showing('unknown', { reconcileAt }) })
    const reply = await ask(MISSING)
    expect([reply.status, codeOf(reply)]).toEqual([409, 'idempotency_outcome_unknown'])
    expect(headerOf(reply, 'retry-after')).toBe(seconds)
  })

  it('reports an unknown outcome after its expiry', async () => {
    const { ask } = setup({ calls: showing('unknown', { expiresAt: inMs(-HOUR_MS) }) })
    expect((await ask(MISSING)).status).toBe(409)
  })

  it('answers 409 for released work, because waiting would be useless', async () => {
    const { memory, ask, clock } = setup()
    const request = await claim(memory)
    await memory.settle([
      {
        ...{ kind: 'release', lease: { ...request, attempt: 1 }, proof: 'declared' },
        ...{ errorCode: undefined, retentionMs: HOUR_MS },
      },
    ])
    const reply = await ask(request.recordId)
    expect([reply.status, codeOf(reply)]).toEqual([409, 'idempotency_retry_required'])
    expect(headerOf(reply, 'retry-after')).toBeUndefined()
    clock.advance(48 * HOUR_MS)
    expect((await ask(request.recordId)).status).toBe(410)
  })
})

describe('a record that is not there', () => {
  it('answers alike for a missing record and a record of another tenant', async () => {
    for (const history of [false, true]) {
      const { memory, ask, asked } = setup({ history })
      const { recordId } = await complete(memory, { status: 200, body: 'secret' })
      asked.length = 0
      const missing = await ask(MISSING)
      const calls = asked.splice(0)
      const foreign = await ask(recordId, { tenant: 'other' })
      expect(foreign).toEqual(missing)
      expect([foreign.status, codeOf(foreign)]).toEqual([404, 'idempotency_record_not_found'])
      expect(asked).toEqual(calls)
      expect(asked).toEqual(history ? ['read', 'history'] : ['read'])
      expect((await ask(recordId)).status).toBe(200)
    }
  })

  it.each(['', 'key-1', `${MISSING} `, MISSING.toUpperCase(), '../admin', `${MISSING}\n`, '\0'])(
    'answers 404 to the id %j without a call to the store',
    async (id) => {
      const { ask, asked } = setup()
      expect(await ask(id)).toEqual(await ask(MISSING))
      expect(asked).toEqual(['read'])
    },
  )

  it('answers 404 to a request without an id', async () => {
    const { ask } = setup({ recordId: () => undefined })
    expect((await ask(MISSING)).status).toBe(404)
  })
})

describe('a store that fails', () => {
  const away = async () => {
    throw new Error('the store is away')
  }
  const finished = showing('completed', { result: new Uint8Array(0) })

  it.each<[string, Partial<Store>]>([
    ['read', { read: away }],
    ['history', { read: async () => undefined, history: away }],
    ['now', { ...finished, now: away }],
  ])('a store that fails at %s causes an error, never "not found"', async (call, calls) => {
    const { ask, events } = setup({ calls })
    const reply = await ask(MISSING)
    expect([reply.status, codeOf(reply)]).toEqual([503, 'idempotency_status_unavailable'])
    expect(headerOf(reply, 'retry-after')).toBe('1')
    expect(headerOf(reply, 'cache-control')).toBe('no-store')
    expect(events).toEqual([expect.objectContaining({ kind: 'store_error', call })])
  })

  it.each<[string, Partial<Store>]>([
    ['read', { read: () => new Promise(() => undefined) }],
    ['history', { history: () => new Promise(() => undefined) }],
  ])('a store that does not answer at %s is not waited for indefinitely', async (_call, calls) => {
    const { ask, clock } = setup({ calls })
    const reply = ask(MISSING)
    await clock.advanceAsync(5_000)
    expect((await reply).status).toBe(503)
  })
})

it.each(['POST', 'PUT', 'DELETE', 'OPTIONS', 'get'])(
  'does not answer a %s request',
  async (method) => {
    const { ask, asked } = setup()
    const reply = await ask(MISSING, { method })
    expect([reply.status, headerOf(reply, 'allow')]).toEqual([405, 'GET, HEAD'])
    expect(asked).toEqual([])
  },
)

it('answers HEAD like GET; the adapter leaves the body out', async () => {
  const { memory, ask } = setup()
  const { recordId } = await complete(memory, { status: 200, body: 'whole' })
  expect(await ask(recordId, { method: 'HEAD' })).toEqual(await ask(recordId))
})

it('fails closed when the tenant function fails, before it reads the id', async () => {
  const { ask, asked } = setup()
  for (const id of [MISSING, 'malformed']) {
    await expect(ask(id, { tenant: '' })).rejects.toThrow('tenant(request) returned ""')
  }
  expect(asked).toEqual([])
})

it('passes on the error of an option function', async () => {
  const unauthorized = Object.assign(new Error('who are you?'), { status: 401 })
  const { ask } = setup({ tenant: () => Promise.reject(unauthorized) })
  await expect(ask(MISSING)).rejects.toBe(unauthorized)
})

it('replies in the Stripe error format in the stripe profile', async () => {
  const { ask } = setup({ profile: 'stripe', docsUrl: 'https://api.example/retries' })
  const reply = await ask(MISSING)
  expect(JSON.parse(textOf(reply))).toMatchObject({
    error: { type: 'invalid_request_error', code: 'idempotency_record_not_found' },
  })
  expect(headerOf(reply, 'link')).toBe('<https://api.example/retries>; rel="describedby"')
})

const store = memoryStore()
const tenant = () => 'single'

it.each<[string, object, string]>([
  ['an option that does not exist', { store, tenant, seal: () => 0 }, '"seal"'],
  ['no tenant', { store }, 'tenant must be a function'],
  ['no store', { tenant }, 'idempotencyStatus needs a store'],
  ['two stores', { tenant, store, engine: createEngine({ store }) }, 'not both'],
  [
    'an id that is not a function',
    { store, tenant, recordId: 'id' },
    'recordId must be a function',
  ],
  ['an invalid encryption', { store, tenant, encryption: true }, 'encryption must be'],
  [
    'required encryption without encryption',
    { store, tenant, requireEncryption: true },
    'needs encryption',
  ],
  [
    'a URL that is not a function',
    { store, tenant, statusUrl: '/' },
    'statusUrl must be a function',
  ],
  ['an invalid version', { store, tenant, replyVersion: -1 }, 'replyVersion must be a whole'],
  ['an unknown profile', { store, tenant, profile: 'rfc' }, 'profile must be'],
  ['no options', null as unknown as object, 'takes an options object'],
])('refuses %s', (_what, options, message) => {
  const make = () => createStatus(options as StatusOptions<unknown>, () => undefined)
  expect(make).toThrow(message)
})

it.each([
  ['/operations/1', '1'],
  ['/operations/1/', '1'],
  ['1', '1'],
  ['/', undefined],
  ['', undefined],
])('finds the last path segment of %j', (path, part) => {
  expect(lastSegment(path)).toBe(part)
})
