import { expect, it, vi } from 'vitest'
import { sign, TOLERANCE_MS, verify } from '../../../examples/provider/signature.ts'
import { CHARGE, dataFolder, SECRET, startProvider, startReceiver, type Received } from './scene.ts'

/** Held events are released only when a later event was delivered. */
const HELD = { heldMaxMs: 3_600_000 }
/** Short pauses, so that no test waits. */
const QUICK = { firstRetryMs: 1, retryMaxMs: 1, timeoutMs: 60_000 }
const PATIENCE = { timeout: 20_000 }

const typesOf = (received: readonly Received[], sequence: number) =>
  received.filter(({ event }) => event.effect.sequence === sequence).map(({ event }) => event.type)

const IN_ORDER = ['effect.received', 'effect.succeeded']

it('sends two signed events for each effect, in order', async () => {
  const receiver = await startReceiver()
  const { post } = await startProvider({ webhookUrls: [receiver.url], webhookSecret: SECRET })
  const charge = await post('/charges', 'k-1')
  const declined = await post('/charges', 'k-2', { ...CHARGE, account: 'declined' })
  await receiver.until(({ length }) => length === 4)

  expect(typesOf(receiver.received, 1)).toEqual(IN_ORDER)
  expect(typesOf(receiver.received, 2)).toEqual(['effect.received', 'effect.declined'])
  const effects = receiver.received.map(({ event }) => event.effect)
  expect(effects).toEqual(expect.arrayContaining([charge.body, declined.body]))
  expect(new Set(receiver.received.map(({ event }) => event.id)).size).toBe(4)
  for (const { body, signature: header } of receiver.received) {
    const signed = { body, header, now: Date.now() }
    expect(verify({ ...signed, secret: SECRET })).toEqual({
      kind: 'valid',
      signedAt: expect.any(Date),
    })
    expect(verify({ ...signed, secret: 'other' }).kind).toBe('invalid')
  }
})

it('sends no event for a replay', async () => {
  const receiver = await startReceiver()
  const { post, get } = await startProvider({ webhookUrls: [receiver.url], webhookSecret: SECRET })
  await post('/charges', 'k-1')
  await post('/charges', 'k-1')
  await post('/charges', 'k-2')
  await receiver.until((all) => typesOf(all, 2).length === 2 && typesOf(all, 1).length === 2)
  await vi.waitFor(async () => {
    expect((await get('/healthz')).body.webhooks).toEqual({ pending: 0, dropped: 0, givenUp: 0 })
  }, PATIENCE)
  expect(receiver.received).toHaveLength(4)
})

it('duplicateWebhook: delivers the same event two or three times to each receiver', async () => {
  const receivers = [await startReceiver(), await startReceiver()]
  const { post, get } = await startProvider({
    webhookUrls: receivers.map(({ url }) => url),
    webhookSecret: SECRET,
    faults: { duplicateWebhook: 1 },
  })
  for (let index = 0; index < 4; index++) await post('/charges', `k-${index}`)
  await vi.waitFor(async () => {
    expect((await get('/healthz')).body.webhooks.pending).toBe(0)
  }, PATIENCE)
  const all = receivers.flatMap(({ received }) => received)
  const copies = Object.values(Object.groupBy(all, ({ event }) => event.id)).map((same) => same!)
  expect(copies).toHaveLength(8)
  expect(new Set(copies.map(({ length }) => length))).toEqual(new Set([2, 3]))
  for (const same of copies) expect(new Set(same.map(({ body }) => body)).size).toBe(1)
  for (const { received } of receivers) {
    expect(new Set(received.map(({ event }) => event.id)).size).toBe(8)
  }
  expect((await get('/faults')).body.counts.duplicateWebhook).toBe(8)
})

it('lostWebhook: never delivers the event', async () => {
  const receiver = await startReceiver()
  const { post, get, setFaults } = await startProvider({
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
    faults: { lostWebhook: 1 },
  })
  await post('/charges', 'k-1')
  expect((await get('/healthz')).body.webhooks.pending).toBe(0)
  setFaults({})
  await post('/charges', 'k-2')
  await receiver.until((all) => typesOf(all, 2).length === 2)
  expect(typesOf(receiver.received, 1)).toEqual([])
})

it('webhookOutOfOrder: delivers the outcome before the creation event', async () => {
  const receiver = await startReceiver()
  const { post } = await startProvider({
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
    webhookTuning: HELD,
    faults: { webhookOutOfOrder: 1 },
  })
  for (let index = 1; index <= 3; index++) await post('/charges', `k-${index}`)
  await receiver.until(({ length }) => length === 6)
  for (const sequence of [1, 2, 3]) {
    expect(typesOf(receiver.received, sequence)).toEqual(IN_ORDER.toReversed())
  }
})

it('delivers each event once while some are out of order, and the others in order', async () => {
  const receiver = await startReceiver()
  const { post, get, setFaults } = await startProvider({
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
    webhookTuning: HELD,
    faults: { webhookOutOfOrder: 0.5 },
  })
  for (let index = 1; index <= 10; index++) await post('/charges', `k-${index}`)
  setFaults({})
  await post('/charges', 'last')
  await receiver.until(({ length }) => length === 22)
  expect(new Set(receiver.received.map(({ event }) => event.id)).size).toBe(22)
  const orders = Array.from({ length: 10 }, (_, index) => typesOf(receiver.received, index + 1))
  expect(orders).toContainEqual(IN_ORDER)
  expect(orders).toContainEqual(IN_ORDER.toReversed())
  expect((await get('/faults')).body.counts.webhookOutOfOrder).toBeGreaterThan(4)
})

it('holds back an event without a successor for a limited time only', async () => {
  const receiver = await startReceiver()
  const { post, get } = await startProvider({
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
    webhookTuning: { heldMaxMs: 20 },
    // With this seed the first of the two is delivered, and the second is held back.
    ...{ seed: 1, faults: { webhookOutOfOrder: 0.5 } },
  })
  await post('/charges', 'k-1')
  await receiver.until(({ length }) => length === 2)
  expect(typesOf(receiver.received, 1)).toEqual(IN_ORDER)
  expect((await get('/faults')).body.counts.webhookOutOfOrder).toBe(1)
})

it('retries a failing receiver in order, with new signatures', async () => {
  const receiver = await startReceiver((count) => (count <= 2 ? 500 : 204))
  let nowMs = Date.now()
  const { post } = await startProvider({
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
    webhookTuning: QUICK,
    now: () => (nowMs += 1000),
  })
  await post('/charges', 'k-1')
  await receiver.until(({ length }) => length === 4)
  expect(typesOf(receiver.received, 1)).toEqual([
    ...['effect.received', 'effect.received'],
    ...IN_ORDER,
  ])
  const [first, second] = receiver.received
  expect(second!.body).toBe(first!.body)
  expect(second!.signature).not.toBe(first!.signature)
})

it('drops a delivery after its last try, and continues with the next', async () => {
  const receiver = await startReceiver(() => 503)
  const { post, get } = await startProvider({
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
    webhookTuning: { ...QUICK, triesMax: 2 },
  })
  await post('/charges', 'k-1')
  await vi.waitFor(async () => {
    expect((await get('/healthz')).body.webhooks).toEqual({ pending: 0, dropped: 0, givenUp: 2 })
  }, PATIENCE)
  const tries = IN_ORDER.flatMap((type) => [type, type])
  expect(typesOf(receiver.received, 1)).toEqual(tries)
})

it('delivers to one receiver when another is gone, answers too late, or redirects', async () => {
  const hangs = await startReceiver(() => 'never')
  const redirects = await startReceiver(() => 302)
  const works = await startReceiver()
  const { post } = await startProvider({
    webhookUrls: ['http://127.0.0.1:1/hook', hangs.url, redirects.url, works.url],
    webhookSecret: SECRET,
    webhookTuning: { ...QUICK, timeoutMs: 100 },
  })
  await post('/charges', 'k-1')
  await works.until((all) => typesOf(all, 1).includes('effect.succeeded'))
  // On a busy machine the answer of this receiver may be late too; then the event is repeated.
  expect([...new Set(typesOf(works.received, 1))]).toEqual(IN_ORDER)
  expect(hangs.received.length).toBeGreaterThan(0)
})

it('a receiver that never answers delays neither the API nor a shutdown', async () => {
  const receiver = await startReceiver(() => 'never')
  const { post, close } = await startProvider({
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
    webhookTuning: { timeoutMs: 3_600_000 },
  })
  await post('/charges', 'first')
  await receiver.until(({ length }) => length > 0)
  const keys = Array.from({ length: 20 }, (_, index) => `k-${index}`)
  const answers = await Promise.all(keys.map((key) => post('/charges', key)))
  expect(answers.every(({ status }) => status === 201)).toBe(true)
  await close()
})

it('limits the queue of a receiver, and counts dropped events', async () => {
  const { post, get } = await startProvider({
    webhookUrls: ['http://127.0.0.1:1/hook'],
    webhookSecret: SECRET,
    webhookTuning: { queueMax: 3 },
  })
  await post('/charges', 'k-1')
  expect((await post('/charges', 'k-2')).status).toBe(201)
  expect((await post('/charges', 'k-3')).status).toBe(201)
  expect((await get('/healthz')).body.webhooks).toEqual({ pending: 3, dropped: 3, givenUp: 0 })
})

it('keeps undelivered events over a restart, until there is a receiver', async () => {
  const folder = dataFolder()
  const options = { dataFolder: folder, webhookSecret: SECRET, webhookTuning: QUICK }
  const before = await startProvider(options)
  await before.post('/charges', 'k-1')
  await before.close()

  const receiver = await startReceiver()
  const after = await startProvider(options)
  expect((await after.get('/healthz')).body.webhooks.pending).toBe(2)
  after.setWebhookUrls([receiver.url])
  await receiver.until(({ length }) => length === 2)
  expect(typesOf(receiver.received, 1)).toEqual(IN_ORDER)
})

it('queues no event when no receiver has the secret', async () => {
  const { post, get } = await startProvider()
  await post('/charges', 'k-1')
  expect((await get('/healthz')).body.webhooks.pending).toBe(0)
})

it('verifies the signature of a body and its time', () => {
  const body = '{"id":"ev_1"}'
  const now = 1_800_000_000_000
  const header = sign({ body, secret: SECRET, now })
  expect(header).toMatch(/^t=1800000000,v1=[0-9a-f]{64}$/)
  const check = (change: object) => {
    const result = verify({ body, header, secret: SECRET, now, ...change })
    return result.kind === 'valid' ? 'valid' : result.reason
  }
  expect(check({})).toBe('valid')
  expect(check({ body: Buffer.from(body) })).toBe('valid')
  expect(check({ body: `${body} ` })).toBe('wrong_signature')
  expect(check({ secret: 'other' })).toBe('wrong_signature')
  expect(check({ header: header.replace('t=18', 't=19') })).toBe('wrong_signature')
  expect(check({ header: undefined })).toBe('missing')
  expect(check({ header: '' })).toBe('missing')
  for (const wrong of ['x', 't=1', header.slice(0, -1), `${header},v1=0`, header.toUpperCase()]) {
    expect(check({ header: wrong })).toBe('malformed')
  }
  expect(check({ now: now + TOLERANCE_MS })).toBe('valid')
  expect(check({ now: now + TOLERANCE_MS + 1 })).toBe('too_old')
  expect(check({ now: now - TOLERANCE_MS - 1 })).toBe('too_new')
  expect(check({ now: now + 2_000, toleranceMs: 1_000 })).toBe('too_old')
})
