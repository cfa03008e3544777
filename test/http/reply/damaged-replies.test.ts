import { DatabaseSync } from 'node:sqlite'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Encryption } from '../../../src/core/encryption.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { timedOutReply } from '../../../src/http/reply/abandoned-reply.ts'
import type { Store } from '../../../src/core/store/store.ts'
import type { Answer, HttpReply } from '../../../src/http/guard/exchange.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import type { GuardOptions } from '../../../src/http/guard/guard-options.ts'
import { encodeAbandonedReply, encodeHttpReply } from '../../../src/http/reply/http-reply.ts'
import { createStatus } from '../../../src/http/status/status.ts'
import { cachedStore, memoryCache, type ReplyCache } from '../../../src/stores/cached/index.ts'
import { sqliteStore } from '../../../src/stores/sqlite/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { aesGcm, flipping, flippingLater } from './encryptions.ts'
import { exchangeOf, InstantHandler } from '../guard/instant-handler.ts'
import { VERSION_1_REPLIES, VERSION_1_SEALED } from './version-1-replies.ts'

// Rows of a real database file, damaged on a separate connection.

interface Request {
  readonly tenant: string
  readonly key: string
}

const ANN: Request = { tenant: 'ann', key: 'k' }
const BOB: Request = { tenant: 'bob', key: 'k' }

type Options = Partial<GuardOptions<Request>>

/** A cache whose entries a test can change when they are read. */
class EditedCache implements ReplyCache {
  fills = 0
  edit: (entry: Uint8Array) => Uint8Array = (entry) => entry
  readonly #inner: ReplyCache

  constructor(clock: FakeClock) {
    this.#inner = memoryCache({ clock })
  }

  async get(identities: readonly string[]): Promise<(Uint8Array | undefined)[]> {
    const entries = await this.#inner.get(identities)
    return entries.map((entry) => entry && this.edit(entry))
  }

  fill(...args: Parameters<ReplyCache['fill']>): Promise<void> {
    this.fills++
    return this.#inner.fill(...args)
  }

  forget(...args: Parameters<ReplyCache['forget']>): Promise<void> {
    return this.#inner.forget(...args)
  }
}

function setup(options: Options = {}) {
  const folder = scratchFolder()
  const path = folder.file('records.db')
  const clock = new FakeClock()
  const store = sqliteStore({ path, clock })
  const events: EngineEvent[] = []
  const engineOn = (on: Store) =>
    createEngine({
      ...{ store: on, clock, sweepEveryMs: 0, reapEveryMs: 0 },
      onEvent: (event) => events.push(event),
    })
  const engine = engineOn(store)
  const db = new DatabaseSync(path)
  onTestFinished(async () => {
    db.close()
    await engine.close()
    await store.close?.()
    folder.remove()
  })
  const tenant = (request: Request) => request.tenant
  const guardWith = (more: Options) => createGuard({ engine, tenant, ...options, ...more })
  const guard = guardWith({})
  const behindCache = () => {
    const cache = new EditedCache(clock)
    const cached = cachedStore({ durable: store, cache, clock })
    return { cache, guard: guardWith({ engine: engineOn(cached) }) }
  }
  const send = async (request: Request, reply: HttpReply = JSON_REPLY, on = guard) => {
    const handler = new InstantHandler(reply)
    const exchange = exchangeOf({ 'idempotency-key': request.key })
    const answer = await on.handle(request, exchange, handler)
    return { answer, entered: handler.entered }
  }
  const write = db.prepare('UPDATE oncekey_record SET result = ? WHERE tenant = ? AND key = ?')
  const select = db.prepare('SELECT * FROM oncekey_record WHERE tenant = ? AND key = ?')
  return {
    ...{ clock, engine, events, db, guardWith, behindCache, send, tenant },
    row: (request: Request) =>
      select.get(request.tenant, request.key) as unknown as {
        readonly record_id: string
        readonly result: Uint8Array
      },
    write: (request: Request, result: Uint8Array) => {
      expect(write.run(result, request.tenant, request.key).changes).toBe(1)
    },
  }
}

const JSON_REPLY: HttpReply = {
  status: 201,
  headers: [
    ['content-type', 'application/json; charset=utf-8'],
    ['location', '/payments/1'],
  ],
  body: Buffer.from('{"paid":true,"amount":100}'),
}

const REPLIES: readonly (readonly [name: string, reply: HttpReply, options: Options])[] = [
  ['JSON with headers', JSON_REPLY, {}],
  ['text', { status: 200, headers: [['content-type', 'text/plain']], body: Buffer.from('ok') }, {}],
  ['binary', { status: 200, headers: [], body: Uint8Array.of(0, 255, 13, 10, 0, 1) }, {}],
  ['an empty 204', { status: 204, headers: [], body: new Uint8Array(0) }, {}],
  ['an elided body', JSON_REPLY, { replyBytesMax: 5 }],
  ['an encrypted reply', JSON_REPLY, { encryption: aesGcm() }],
  ['a reply that must be encrypted', JSON_REPLY, { encryption: aesGcm(), requireEncryption: true }],
]

function flipped(bytes: Uint8Array, bit: number): Uint8Array {
  const damaged = Uint8Array.from(bytes)
  damaged[bit >> 3]! ^= 1 << (bit & 7)
  return damaged
}

/** The part of an answer that the client sees. */
function visibleReply(answer: Answer): unknown {
  if (answer.kind !== 'reply') throw new Error(`expected a reply, got ${answer.kind}`)
  const { status, headers, body } = answer.reply
  return { status, headers, body: Buffer.from(body).toString('latin1') }
}

function problemOf(answer: Answer): unknown {
  const { status, body } = visibleReply(answer) as {
    readonly status: number
    readonly body: string
  }
  return [status, status === 409 && (JSON.parse(body) as { code: unknown }).code]
}

const UNREADABLE = [409, 'idempotency_reply_unreadable']

const unreadableEvents = (events: readonly EngineEvent[]) =>
  events.filter(({ kind }) => kind === 'reply_unreadable')

describe('a row in which one bit is wrong', () => {
  it.each(REPLIES)(
    'never replays another reply when one bit of the row is wrong: %s',
    async (_name, reply, options) => {
      const { send, row, write, events } = setup(options)
      expect((await send(ANN, reply)).answer.kind).toBe('deliver')
      const { result } = row(ANN)
      for (let bit = 0; bit < result.length * 8; bit++) {
        write(ANN, flipped(result, bit))
        const { answer, entered } = await send(ANN, reply)
        expect([bit, problemOf(answer), entered]).toEqual([bit, UNREADABLE, 0])
      }
      expect(unreadableEvents(events)).toHaveLength(result.length * 8)
      write(ANN, result)
      expect(problemOf((await send(ANN, reply)).answer)).toEqual([reply.status, false])
    },
  )

  it('never replays another reply through a cache when one bit of the row is wrong', async () => {
    const { send, row, write, behindCache, events } = setup()
    await send(ANN)
    const { result } = row(ANN)
    for (let bit = 0; bit < result.length * 8; bit += 5) {
      write(ANN, flipped(result, bit))
      const { guard, cache } = behindCache()
      // First from the row, then from the cache that was filled from it.
      for (let n = 0; n < 2; n++) {
        expect(problemOf((await send(ANN, JSON_REPLY, guard)).answer)).toEqual(UNREADABLE)
      }
      expect(cache.fills).toBe(1)
    }
    expect(unreadableEvents(events).length).toBe(2 * Math.ceil((result.length * 8) / 5))
  })
})

it('replays the recorded reply when one bit of the cached one is wrong', async () => {
  const { send, behindCache } = setup()
  const { guard, cache } = behindCache()
  await send(ANN, JSON_REPLY, guard)
  const whole = visibleReply((await send(ANN, JSON_REPLY, guard)).answer)
  let bits = Number.POSITIVE_INFINITY
  for (let bit = 0; bit < bits; bit++) {
    cache.edit = (entry) => {
      bits = entry.length * 8
      return flipped(entry, bit)
    }
    expect(visibleReply((await send(ANN, JSON_REPLY, guard)).answer)).toEqual(whole)
  }
  expect(bits).toBeGreaterThan(1_000)
})

it('reports a damaged reply with its record, and without its content', async () => {
  const { send, row, write, events } = setup()
  await send(ANN)
  const { record_id: recordId, result } = row(ANN)
  write(ANN, result.subarray(0, -1))
  const { length } = result
  await send(ANN)
  expect(unreadableEvents(events)).toEqual([
    {
      kind: 'reply_unreadable',
      identity: expect.stringMatching(/^[0-9a-f]{32}$/),
      ...{ tenant: 'ann', operation: 'POST /payments', recordId },
      reason: `the recorded reply has ${length - 1} bytes, but its length field is ${length}`,
    },
  ])
})

it('does not show a damaged reply on the status route', async () => {
  const { send, row, write, events, engine, tenant } = setup()
  await send(ANN)
  const { record_id: recordId, result } = row(ANN)
  const status = createStatus<Request>({ engine, tenant }, () => recordId)
  const ask = () => status.reply(ANN, { method: 'GET', accepted: undefined })
  expect((await ask()).status).toBe(201)
  write(ANN, Uint8Array.from(result).fill(0, 20, 21))
  const reply = await ask()
  expect(problemOf({ kind: 'reply', reply })).toEqual(UNREADABLE)
  expect(unreadableEvents(events)).toMatchObject([{ recordId, tenant: 'ann' }])
})

describe.each<[string, Encryption | undefined]>([
  ['a plain reply', undefined],
  ['an encrypted reply', aesGcm()],
  ['a reply of a cipher that ignores its record', flipping],
])('%s in the row of another record', (_kind, encryption) => {
  const options = encryption === undefined ? {} : { encryption }

  it.each([
    ['tenant', BOB],
    ['key', { ...ANN, key: 'other' }],
  ])('a copied reply is not replayed under another %s', async (_what, other) => {
    const { send, row, write, db, events } = setup(options)
    await send(ANN)
    await send(other)
    const { result, record_id: recordId } = row(ANN)
    write(other, result)
    expect(problemOf((await send(other)).answer)).toEqual(UNREADABLE)
    // The record id is copied too, as if the whole row had been copied.
    db.prepare('DELETE FROM oncekey_record WHERE record_id = ?').run(recordId)
    db.prepare('UPDATE oncekey_record SET record_id = ?').run(recordId)
    expect(problemOf((await send(other)).answer)).toEqual(UNREADABLE)
    expect(unreadableEvents(events)).toMatchObject([{ tenant: other.tenant }, { recordId }])
  })

  it('a copied reply is not replayed for a later record of the same key', async () => {
    const { send, row, write, clock } = setup({ ...options, retentionMs: 3_600_000 })
    await send(ANN)
    const { result } = row(ANN)
    clock.advance(3_600_000)
    expect((await send(ANN)).entered).toBe(1)
    write(ANN, result)
    expect(problemOf((await send(ANN)).answer)).toEqual(UNREADABLE)
  })
})

describe('required encryption', () => {
  const encryption = aesGcm()
  const required = { encryption, requireEncryption: true } as const

  it('required encryption refuses a reply that was forged without the key', async () => {
    const { send, row, write, engine, events, guardWith } = setup({ encryption })
    await send(ANN)
    const record = (await engine.read({ recordId: row(ANN).record_id }))!
    write(ANN, await encodeHttpReply(record, { status: 201, body: { forged: true } }))
    const refusing = guardWith(required)
    expect(problemOf((await send(ANN, JSON_REPLY, refusing)).answer)).toEqual(UNREADABLE)
    expect(unreadableEvents(events)).toMatchObject([{ reason: expect.stringMatching(/encrypted/) }])
    // Without the requirement it is valid, like replies from before encryption was enabled.
    expect(problemOf((await send(ANN)).answer)).toEqual([201, false])
    const theirs = { status: 201, body: { forged: true }, encryption: aesGcm() }
    write(ANN, await encodeHttpReply(record, theirs))
    expect(problemOf((await send(ANN, JSON_REPLY, refusing)).answer)).toEqual(UNREADABLE)
    write(ANN, await encodeHttpReply(record, { ...theirs, encryption }))
    expect(problemOf((await send(ANN, JSON_REPLY, refusing)).answer)).toEqual([201, false])
  })

  it('required encryption accepts no unbound reply but that of abandoned work', async () => {
    const { send, write, guardWith } = setup({ encryption })
    await send(ANN)
    const refusing = guardWith(required)
    write(ANN, timedOutReply())
    expect(problemOf((await send(ANN, JSON_REPLY, refusing)).answer)).toEqual([408, false])
    const own = encodeAbandonedReply({ status: 410, body: 'gone' })
    write(ANN, own)
    expect(problemOf((await send(ANN)).answer)).toEqual([410, false])
    expect(problemOf((await send(ANN, JSON_REPLY, refusing)).answer)).toEqual(UNREADABLE)
  })
})

it.each([...VERSION_1_REPLIES, ...VERSION_1_SEALED])(
  'replays a %s reply that an earlier release recorded',
  async (_name, hex, reply) => {
    const { send, write } = setup({ encryption: flippingLater })
    await send(ANN)
    write(ANN, Buffer.from(hex, 'hex'))
    const { answer } = await send(ANN)
    expect(visibleReply(answer)).toMatchObject({ status: reply.status })
    if (reply.elided) return
    const body = Buffer.from(reply.body).toString('latin1')
    expect(visibleReply(answer)).toMatchObject({
      body,
      headers: expect.arrayContaining([...reply.headers]),
    })
  },
)

it('waits for a silent key service as long as for a store', async () => {
  const decrypt = () => new Promise<Uint8Array>(() => undefined)
  const { send, clock, events } = setup({ encryption: { ...flipping, decrypt } })
  await send(ANN)
  const replay = send(ANN)
  while (clock.pendingTimers === 0) await clock.advanceAsync(0)
  await clock.advanceAsync(5_000)
  expect(problemOf((await replay).answer)).toEqual(UNREADABLE)
  const reason = 'encryption.decrypt has not answered within 5000 ms'
  expect(unreadableEvents(events)).toMatchObject([{ reason }])
})
