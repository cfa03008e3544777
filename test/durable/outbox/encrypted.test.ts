import { describe, expect, it } from 'vitest'
import type { Encryption } from '../../../src/core/encryption.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { NewMessage, OutboxStore } from '../../../src/core/store/durable-store.ts'
import { createOutbox, type AddOptions } from '../../../src/durable/outbox/outbox.ts'
import type { RelayMessage } from '../../../src/durable/outbox/relay-contract.ts'
import { createRelay } from '../../../src/durable/outbox/relay.ts'
import { createOperator } from '../../../src/durable/operator/operator.ts'
import { aesGcm, flipping, flippingLater } from '../../http/reply/encryptions.ts'
import { setup, TOPIC, withOutbox } from './relay-fixture.ts'

const PAYLOAD = { card: 'a-secret-card' }
const RESEND = { backoff: { firstMs: 1, maxMs: 1 } }

/** The outbox of the fixture, on an engine with encryption, and a relay of that engine. */
function encrypted(
  encryption: Encryption,
  { change = (own: OutboxStore) => own, ...options }: Options = {},
) {
  const fixture = setup()
  const { own, clock, app, events } = fixture
  const engine = createEngine({
    store: withOutbox(fixture.store, change(own)),
    ...{ clock, encryption, sweepEveryMs: 0, reapEveryMs: 0 },
    onEvent: (event) => void events.push(event),
    ...options,
  })
  const outbox = createOutbox({ engine })
  const received: RelayMessage[] = []
  const relayOf = (maxAttempts = 20, topics = [TOPIC], on = engine) => {
    const handler = (message: RelayMessage) => void received.push(message)
    const handlers = Object.fromEntries(topics.map((topic) => [topic, handler]))
    return createRelay({ engine: on, topics: handlers, maxAttempts, ...RESEND })
  }
  const add = (payload: unknown, addOptions: AddOptions = {}) => {
    app.exec('BEGIN')
    try {
      return outbox.add(app, TOPIC, payload, addOptions).id
    } finally {
      app.exec('COMMIT')
    }
  }
  const payloads = () => received.map(({ payload }) => payload)
  return { ...fixture, engine, outbox, relayOf, add, received, payloads }
}

/** Another engine on the same store. */
function engineOn(
  { store, clock }: Pick<ReturnType<typeof setup>, 'store' | 'clock'>,
  options: Partial<EngineOptions> = {},
) {
  const timers = { sweepEveryMs: 0, reapEveryMs: 0 }
  return createEngine({ store, clock, onEvent: () => undefined, ...timers, ...options })
}

type Options = Partial<EngineOptions> & { change?: (own: OutboxStore) => OutboxStore }

/** The outbox of a driver that answers later, as those of PostgreSQL and MySQL do. */
function asynchronous(added: NewMessage[] = []) {
  return (own: OutboxStore): OutboxStore => ({
    ...own,
    isSynchronous: false,
    add: async (tx, message) => {
      added.push(message)
      await own.add(tx, message)
    },
  })
}

describe('an encrypted payload', () => {
  it.each([
    ['JSON', PAYLOAD],
    ['bytes', Uint8Array.of(1, 2, 3)],
    ['no payload', undefined],
  ])(
    'is stored without its text, and its handler gets it decrypted: %s',
    async (_what, payload) => {
      const { add, read, relayOf, received } = encrypted(aesGcm())
      const id = add(payload, { tenant: 'acme' })
      const stored = (await read(id)).payload!
      expect(stored[0]).toBe(0x45)
      expect(Buffer.from(stored).includes('secret')).toBe(false)
      expect(await relayOf().runOnce()).toMatchObject({ relayed: 1 })
      expect(received[0]!.payload).toEqual(payload)
    },
  )

  it('gives the hooks its tenant, its topic and its id', async () => {
    const contexts: object[] = []
    const note = (bytes: Uint8Array, context: object) => (contexts.push(context), bytes)
    const { add, relayOf } = encrypted({ encrypt: note, decrypt: note })
    const id = add(PAYLOAD, { tenant: 'acme' })
    await relayOf().runOnce()
    const associatedData = Buffer.from(`oncekey:message:1:36:${id}:12:${TOPIC}:4:acme`)
    const expected = { purpose: 'message', tenant: 'acme', operation: TOPIC, recordId: id }
    expect(contexts).toEqual([1, 2].map(() => ({ ...expected, identity: '', associatedData })))
  })

  it('is decrypted by hooks that return promises', async () => {
    const { add, relayOf, payloads, store, clock } = encrypted(flipping)
    add(PAYLOAD)
    const later = engineOn({ store, clock }, { encryption: flippingLater })
    expect(await relayOf(20, [TOPIC], later).runOnce()).toMatchObject({ relayed: 1 })
    expect(payloads()).toEqual([PAYLOAD])
  })
})

describe('a payload that cannot be read', () => {
  const swap = ({ app }: ReturnType<typeof encrypted>, one: string, other: string) => {
    const table = 'oncekey_record_message'
    const payloadOf = (id: string) =>
      app.prepare(`SELECT payload FROM ${table} WHERE id = ?`).get(id)!['payload'] as Uint8Array
    const bytes = [payloadOf(other), payloadOf(one)]
    for (const [index, id] of [one, other].entries()) {
      app.prepare(`UPDATE ${table} SET payload = ? WHERE id = ?`).run(bytes[index]!, id)
    }
  }

  it.each([
    ['a cipher with associated data', aesGcm()],
    ['a cipher that ignores them', aesGcm(undefined, { bound: false })],
  ])('is retried, then a dead letter, and never delivered, with %s', async (_kind, encryption) => {
    const fixture = encrypted(encryption)
    const { add, relayOf, received, clock, read, events } = fixture
    const ids = [add({ to: 'ann' }), add({ to: 'bob' })] as const
    swap(fixture, ...ids)
    const relay = relayOf(2)
    expect(await relay.runOnce()).toMatchObject({ retried: 2 })
    await clock.advanceAsync(10)
    expect(await relay.runOnce()).toMatchObject({ dead: 2 })
    expect(received).toEqual([])
    const { state, errors } = await read(ids[0])
    expect(state).toBe('dead')
    expect(errors.at(-1)!.error).toContain(`the payload of message ${ids[0]} cannot be read`)
    expect(events.filter(({ kind }) => kind === 'message_dead')).toHaveLength(2)
    expect(JSON.stringify(events)).not.toMatch(/ann|bob/)

    swap(fixture, ...ids)
    const operator = createOperator({ engine: fixture.engine })
    for (const id of ids) await operator.retryMessage(id, { who: 'ada', why: 'swapped back' })
    expect(await relayOf().runOnce()).toMatchObject({ relayed: 2 })
    expect(fixture.payloads()).toEqual([{ to: 'ann' }, { to: 'bob' }])
  })

  it.each(['topic', 'tenant'])('is not delivered under another %s', async (column) => {
    const { add, app, relayOf, received } = encrypted(aesGcm())
    add(PAYLOAD, { tenant: 'acme' })
    app.prepare(`UPDATE oncekey_record_message SET ${column} = ?`).run('other')
    const relay = relayOf(20, [TOPIC, 'other'])
    expect(await relay.runOnce()).toMatchObject({ relayed: 0, retried: 1 })
    expect(received).toEqual([])
  })

  it('is not delivered as ciphertext by a relay without the encryption', async () => {
    const { add, store, clock, relayOf, received } = encrypted(aesGcm())
    add(PAYLOAD)
    const plain = engineOn({ store, clock })
    expect(await relayOf(20, [TOPIC], plain).runOnce()).toMatchObject({ retried: 1 })
    expect(received).toEqual([])
  })

  it('is delivered if it is plain, unless the engine requires encryption', async () => {
    const options = { requireEncryption: true }
    const { add, app, relayOf, received, clock } = encrypted(aesGcm(), options)
    add(PAYLOAD)
    const forged = Buffer.from('J{"forged":true}')
    app.prepare('UPDATE oncekey_record_message SET payload = ?').run(forged)
    expect(await relayOf().runOnce()).toMatchObject({ retried: 1 })
    expect(received).toEqual([])
    await clock.advanceAsync(10)
    const lenient = encrypted(aesGcm())
    lenient.app.exec('BEGIN')
    void createOutbox({ engine: engineOn(lenient) }).add(lenient.app, TOPIC, { plain: true })
    lenient.app.exec('COMMIT')
    expect(await lenient.relayOf().runOnce()).toMatchObject({ relayed: 1 })
    expect(lenient.payloads()).toEqual([{ plain: true }])
  })

  it('is retried if the key service does not answer within five seconds', async () => {
    const decrypt = () => new Promise<Uint8Array>(() => undefined)
    const { add, relayOf, clock, read, received } = encrypted({ ...flipping, decrypt })
    const id = add(PAYLOAD)
    const passing = relayOf().runOnce()
    while (clock.pendingTimers < 2) await clock.advanceAsync(0)
    await clock.advanceAsync(5_000)
    expect(await passing).toMatchObject({ retried: 1 })
    expect((await read(id)).errors.at(-1)!.error).toMatch(/has not answered within 5000 ms/)
    expect(received).toEqual([])
  })

  it('is not passed to its handler after the lease was lost', async () => {
    const { promise, resolve } = Promise.withResolvers<void>()
    const decrypt: Encryption['decrypt'] = (bytes, context) =>
      promise.then(() => flipping.decrypt(bytes, context))
    const { add, engine, clock } = encrypted({ ...flipping, decrypt })
    add(PAYLOAD)
    let handled = 0
    const topics = { [TOPIC]: () => void handled++ }
    const relay = createRelay({ engine, topics, handlerTimeoutMs: 100, ...RESEND })
    const passing = relay.runOnce()
    while (clock.pendingTimers < 2) await clock.advanceAsync(0)
    await clock.advanceAsync(100)
    expect(await passing).toMatchObject({ retried: 1 })
    resolve()
    for (let n = 0; n < 10; n++) await clock.advanceAsync(0)
    expect(handled).toBe(0)
  })
})

describe('outbox.add with a hook that returns a promise', () => {
  it('refuses it on a store that writes at once, writes nothing, and says what to do', async () => {
    const { app, outbox } = encrypted(flippingLater)
    app.exec('BEGIN')
    expect(() => outbox.add(app, TOPIC, PAYLOAD, { tenant: 'acme' })).toThrow(
      /promise: await outbox\.prepare\("acme"\) before the transaction/,
    )
    expect(() => outbox.add(app, TOPIC, PAYLOAD)).toThrow(/await outbox\.prepare\(\) before/)
    app.exec('COMMIT')
    expect(app.prepare('SELECT count(*) AS n FROM oncekey_record_message').get()!['n']).toBe(0)
  })

  it('has no unhandled rejection if that promise rejects', async () => {
    const encrypt = () => Promise.reject(new Error('down'))
    const { app, outbox } = encrypted({ ...flipping, encrypt })
    app.exec('BEGIN')
    expect(() => outbox.add(app, TOPIC, PAYLOAD)).toThrow(/outbox\.prepare/)
    app.exec('ROLLBACK')
    await new Promise((resolve) => {
      setImmediate(resolve)
    })
  })

  it('awaits it on a store that writes later', async () => {
    const added: NewMessage[] = []
    const { app, outbox, relayOf, payloads } = encrypted(flippingLater, {
      change: asynchronous(added),
    })
    app.exec('BEGIN')
    const message = outbox.add(app, TOPIC, PAYLOAD)
    expect(added).toEqual([])
    expect(await message).toBe(message.id)
    app.exec('COMMIT')
    expect(added[0]!.payload[0]).toBe(0x45)
    expect(await relayOf().runOnce()).toMatchObject({ relayed: 1 })
    expect(payloads()).toEqual([PAYLOAD])
  })

  it('rejects, so that the transaction rolls back, if the hook rejects', async () => {
    const encrypt = () => Promise.reject(new Error('down'))
    const { app, outbox } = encrypted({ ...flipping, encrypt }, { change: asynchronous() })
    app.exec('BEGIN')
    await expect(outbox.add(app, TOPIC, PAYLOAD)).rejects.toThrow('down')
    app.exec('ROLLBACK')
  })
})

describe('outbox.prepare', () => {
  it('prepares the encryption of the tenant, so that add is synchronous after it', async () => {
    const ready = new Set<string | undefined>()
    const encryption: Encryption = {
      ...flipping,
      prepare: async ({ tenant }) => void ready.add(tenant),
      encrypt: (plain, context) =>
        ready.has(context.tenant)
          ? flipping.encrypt(plain, context)
          : flippingLater.encrypt(plain, context),
    }
    const { add, outbox } = encrypted(encryption)
    expect(() => add(PAYLOAD, { tenant: 'acme' })).toThrow(/outbox\.prepare/)
    await outbox.prepare('acme')
    expect(add(PAYLOAD, { tenant: 'acme' })).toMatch(/^[\da-f-]{36}$/)
    expect(() => add(PAYLOAD)).toThrow(/outbox\.prepare\(\)/)
    await outbox.prepare()
    expect(add(PAYLOAD)).toMatch(/^[\da-f-]{36}$/)
  })

  it('rejects if the key service fails, or takes longer than five seconds', async () => {
    const failing = encrypted({ ...flipping, prepare: () => Promise.reject(new Error('down')) })
    await expect(failing.outbox.prepare('acme')).rejects.toThrow('down')
    const silent = encrypted({ ...flipping, prepare: () => new Promise(() => undefined) })
    const refused = silent.outbox.prepare().catch((error: unknown) => error)
    await silent.clock.advanceAsync(5_000)
    expect(await refused).toMatchObject({ message: expect.stringMatching(/within 5000 ms/) })
    await expect(silent.outbox.prepare('')).rejects.toThrow(/must not be empty/)
  })

  it('resolves without encryption, and without the hook', async () => {
    await expect(setup().outbox.prepare('acme')).resolves.toBe(undefined)
    await expect(encrypted(aesGcm()).outbox.prepare()).resolves.toBe(undefined)
  })
})
