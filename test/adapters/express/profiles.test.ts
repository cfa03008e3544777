import type { Request, Response } from 'express'
import { describe, expect, it } from 'vitest'
import type { IdempotencyOptions } from '../../../src/adapters/express/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import { OutcomeUnknownError } from '../../../src/core/errors.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  EXPRESSES,
  caught,
  gate,
  guardOf,
  header,
  json,
  serve,
  wrapStore,
  type ExpressModule,
  type Reply,
} from '../run-express.ts'

type Profile = 'ietf' | 'stripe'

interface Options {
  readonly guard?: Partial<IdempotencyOptions>
  readonly engine?: Partial<EngineOptions>
  readonly handler?: (req: Request, res: Response) => unknown
}

const HOUR_MS = 60 * 60 * 1000

async function setup(express: ExpressModule, { guard, engine: more, handler }: Options = {}) {
  const clock = new FakeClock()
  const store = more?.store ?? memoryStore({ clock })
  const engine = createEngine({ clock, ...more, store })
  const app = express()
  let runs = 0
  app.post(
    '/',
    guardOf({ engine, ...guard }),
    caught((req, res) => {
      runs++
      return handler === undefined ? res.status(201).json({ run: runs }) : handler(req, res)
    }),
  )
  const { send } = await serve(app)
  return { send, clock, engine, runs: () => runs }
}

/** Brings a new server into one situation of the table, and returns its reply. */
type Situation = (express: ExpressModule, profile: Profile) => Promise<Reply>

const failingStore = (call: 'claim' | 'settle', clock: FakeClock) =>
  wrapStore(memoryStore({ clock }), {
    [call]: async () => {
      throw new Error('down')
    },
  })

const SITUATIONS: Readonly<Record<string, Situation>> = {
  'no key': async (express, profile) => {
    const { send } = await setup(express, { guard: { profile } })
    return send({ json: {} })
  },
  'an empty key': async (express, profile) => {
    const { send } = await setup(express, { guard: { profile } })
    return send({ key: '' })
  },
  'a key of 256 characters': async (express, profile) => {
    const { send } = await setup(express, { guard: { profile } })
    return send({ key: 'k'.repeat(256) })
  },
  'a key outside ASCII': async (express, profile) => {
    const { send } = await setup(express, { guard: { profile } })
    return send({ key: 'schlüssel' })
  },
  'two keys': async (express, profile) => {
    const { send } = await setup(express, { guard: { profile } })
    return send({ headers: { 'Idempotency-Key': ['a', 'b'] } })
  },
  'a key reused with another request': async (express, profile) => {
    const { send } = await setup(express, { guard: { profile } })
    await send({ key: 'k', json: { amount: 1 } })
    return send({ key: 'k', json: { amount: 2 } })
  },
  'a duplicate in flight': async (express, profile) => {
    const [entered, opened] = [gate(), gate()]
    const { send } = await setup(express, {
      guard: { profile },
      handler: async (_req, res) => {
        entered.open()
        await opened.passed
        res.end()
      },
    })
    const first = send({ key: 'k' })
    await entered.passed
    const answer = await send({ key: 'k' })
    opened.open()
    await first
    return answer
  },
  'an accepted duplicate': async (express, profile) => {
    const [entered, opened] = [gate(), gate()]
    const { send } = await setup(express, {
      guard: { profile, whileInProgress: 'accepted', statusUrl: (id) => `/status/${id}` },
      handler: async (_req, res) => {
        entered.open()
        await opened.passed
        res.end()
      },
    })
    const first = send({ key: 'k' })
    await entered.passed
    const answer = await send({ key: 'k' })
    opened.open()
    await first
    return answer
  },
  'an unknown outcome': async (express, profile) => {
    const { send } = await setup(express, {
      guard: { profile },
      handler: () => {
        throw new OutcomeUnknownError()
      },
    })
    await send({ key: 'k' })
    return send({ key: 'k' })
  },
  'an unavailable store': async (express, profile) => {
    const clock = new FakeClock()
    const { send } = await setup(express, {
      guard: { profile },
      engine: { store: failingStore('claim', clock) },
    })
    return send({ key: 'k' })
  },
  'an unrecorded outcome': async (express, profile) => {
    const store = failingStore('settle', new FakeClock())
    // A real clock, because the engine must time out without help from the test.
    const engine = createEngine({ store, settleTimeoutMs: 1 })
    const app = express()
    app.post('/', guardOf({ engine, profile }), (_req, res) => res.end())
    const { send } = await serve(app)
    const answer = await send({ key: 'k' })
    await engine.close({ graceMs: 0 })
    return answer
  },
  'an expired key': async (express, profile) => {
    const { send, clock } = await setup(express, {
      guard: { profile, afterExpiry: 'refuse', retentionMs: HOUR_MS },
    })
    await send({ key: 'k' })
    clock.advance(HOUR_MS)
    return send({ key: 'k' })
  },
  'a request above the limit': async (express, profile) => {
    const { send } = await setup(express, { guard: { profile, requestBytesMax: 1 } })
    return send({ key: 'k', body: 'xx' })
  },
}

interface Row {
  readonly situation: string
  readonly status: number
  /** The status of the `stripe` profile, if it differs. */
  readonly stripeStatus?: number
  readonly code: string
  /** `undefined` if the reply is not an error. */
  readonly stripeType: string | undefined
  readonly retryAfterMax?: number
}

const INVALID = 'invalid_request_error'
const MISUSE = 'idempotency_error'
const MALFORMED = { status: 400, code: 'key_malformed', stripeType: INVALID }

// Replies of the guard, in both profiles.
const ROWS: readonly Row[] = [
  { situation: 'no key', status: 400, code: 'key_missing', stripeType: INVALID },
  { situation: 'an empty key', ...MALFORMED },
  { situation: 'a key of 256 characters', ...MALFORMED },
  { situation: 'a key outside ASCII', ...MALFORMED },
  { situation: 'two keys', ...MALFORMED },
  {
    situation: 'a key reused with another request',
    status: 422,
    stripeStatus: 400,
    code: 'key_reused_with_different_payload',
    stripeType: MISUSE,
  },
  {
    situation: 'a duplicate in flight',
    status: 409,
    code: 'key_in_progress',
    stripeType: MISUSE,
    retryAfterMax: 5,
  },
  {
    situation: 'an accepted duplicate',
    status: 202,
    code: 'accepted',
    stripeType: undefined,
    retryAfterMax: 5,
  },
  {
    situation: 'an unknown outcome',
    status: 409,
    code: 'outcome_unknown',
    stripeType: MISUSE,
    retryAfterMax: 60,
  },
  {
    situation: 'an unavailable store',
    status: 503,
    code: 'store_unavailable',
    stripeType: 'api_error',
    retryAfterMax: 5,
  },
  {
    situation: 'an unrecorded outcome',
    status: 503,
    code: 'outcome_not_recorded',
    stripeType: 'api_error',
    retryAfterMax: 5,
  },
  { situation: 'an expired key', status: 410, code: 'key_expired', stripeType: MISUSE },
  {
    situation: 'a request above the limit',
    status: 413,
    code: 'request_too_large',
    stripeType: INVALID,
  },
]

describe.each(EXPRESSES)('%s', (_name, express) => {
  it.each(ROWS)('ietf: returns $status for $situation', async ({ situation, status, ...row }) => {
    const code = `idempotency_${row.code}`
    const reply = await SITUATIONS[situation]!(express, 'ietf')
    expect(reply.status).toBe(status)
    const isError = status >= 400
    const mediaType = isError ? 'application/problem+json' : 'application/json'
    expect(header(reply, 'content-type')).toBe(`${mediaType}; charset=utf-8`)
    expect(json(reply)).toEqual({
      type: `urn:oncekey:problem:${code.replaceAll('_', '-')}`,
      title: expect.stringMatching(/\w/),
      status,
      detail: expect.stringMatching(/\w/),
      code,
    })
    expect(header(reply, 'link')).toMatch(/^<https:\/\/[^>]+>; rel="describedby"$/)
    expect(header(reply, 'cache-control')).toBe('no-store')
    expectRetryAfter(reply, row.retryAfterMax)
    expect(reply.headers.has('idempotent-replayed')).toBe(false)
  })

  it.each(ROWS)(
    "stripe: returns the format of Stripe's errors for $situation",
    async ({ situation, stripeType: type, ...row }) => {
      const code = `idempotency_${row.code}`
      const status = row.stripeStatus ?? row.status
      const reply = await SITUATIONS[situation]!(express, 'stripe')
      expect(reply.status).toBe(status)
      expect(header(reply, 'content-type')).toBe('application/json; charset=utf-8')
      if (type === undefined) expect(json(reply)).toMatchObject({ code, status })
      else expect(json(reply)).toEqual({ error: { type, code, message: expect.any(String) } })
      expectRetryAfter(reply, row.retryAfterMax)
    },
  )

  it('sets Location to the status URL of an accepted request', async () => {
    const reply = await SITUATIONS['an accepted duplicate']!(express, 'ietf')
    expect(header(reply, 'location')).toMatch(/^\/status\/[0-9a-f-]{36}$/)
  })

  it('links to docsUrl when it is set', async () => {
    const docsUrl = 'https://api.example.org/docs/retries'
    const { send } = await setup(express, { guard: { docsUrl } })
    expect(header(await send({}), 'link')).toBe(`<${docsUrl}>; rel="describedby"`)
  })

  it('stripe: records and replays a 500', async () => {
    const { send, runs } = await setup(express, {
      guard: { profile: 'stripe' },
      handler: () => {
        throw new Error('bug')
      },
    })
    const first = await send({ key: 'k' })
    const replay = await send({ key: 'k' })
    expect([first.status, replay.status]).toEqual([500, 500])
    expect(replay.body).toEqual(first.body)
    expect(header(replay, 'idempotent-replayed')).toBe('true')
    expect(runs()).toBe(1)
  })

  it('sends the expiry of a reply, replays until then, and runs again after it', async () => {
    const { send, clock, runs } = await setup(express, { guard: { retentionMs: HOUR_MS } })
    const expires = new Date(clock.nowMs() + HOUR_MS).toUTCString()
    expect(header(await send({ key: 'k' }), 'idempotency-expires')).toBe(expires)
    await clock.advanceAsync(HOUR_MS - 1)
    expect(header(await send({ key: 'k' }), 'idempotency-expires')).toBe(expires)
    expect(runs()).toBe(1)
    await clock.advanceAsync(1)
    expect((await send({ key: 'k' })).headers.has('idempotent-replayed')).toBe(false)
    expect(runs()).toBe(2)
  })

  it('returns 422 for another request, and 409 for a duplicate, while the first runs', async () => {
    const [entered, opened] = [gate(), gate()]
    const { send } = await setup(express, {
      handler: async (_req, res) => {
        entered.open()
        await opened.passed
        res.end()
      },
    })
    const first = send({ key: 'k', json: { amount: 1 } })
    await entered.passed
    expect((await send({ key: 'k', json: { amount: 2 } })).status).toBe(422)
    expect((await send({ key: 'k', json: { amount: 1 } })).status).toBe(409)
    opened.open()
    expect((await first).status).toBe(200)
  })

  it('keeps the record unchanged when another request gets 422', async () => {
    const { send, runs } = await setup(express)
    const first = await send({ key: 'k', json: { amount: 1 } })
    expect((await send({ key: 'k', json: { amount: 2 } })).status).toBe(422)
    const replay = await send({ key: 'k', json: { amount: 1 } })
    expect([replay.status, replay.body]).toEqual([201, first.body])
    expect((await send({ key: 'k', json: { amount: 2 } })).status).toBe(422)
    expect(runs()).toBe(1)
  })

  it('treats a quoted and a bare key as the same key', async () => {
    const { send, runs } = await setup(express)
    await send({ key: 'AGJ6FJMkGQIpHUTX/+8=' })
    for (const key of [
      '"AGJ6FJMkGQIpHUTX/+8="',
      ' AGJ6FJMkGQIpHUTX/+8= ',
      '"AGJ6FJMkGQIpHUTX/+8=";a=1',
    ]) {
      expect(header(await send({ key }), 'idempotent-replayed')).toBe('true')
    }
    expect(runs()).toBe(1)
  })

  it("accepts only a quoted key with keySyntax: 'strict'", async () => {
    const { send } = await setup(express, { guard: { keySyntax: 'strict' } })
    expect((await send({ key: 'bare' })).status).toBe(400)
    expect((await send({ key: '"quoted"' })).status).toBe(201)
  })
})

function expectRetryAfter(reply: Reply, max: number | undefined): void {
  const value = header(reply, 'retry-after')
  if (max === undefined) {
    expect(value).toBeUndefined()
    return
  }
  expect(value).toMatch(/^\d+$/)
  expect(Number(value)).toBeGreaterThanOrEqual(1)
  expect(Number(value)).toBeLessThanOrEqual(max)
}
