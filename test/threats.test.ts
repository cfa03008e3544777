/**
 * The threats of `docs/concepts/threat-model.md`, one attack for each row, in its order. Each
 * attack runs over HTTP or on the durable store, with real parts.
 */
import { RateLimiterMemory } from 'rate-limiter-flexible'
import { describe, expect, it } from 'vitest'
import { PROBLEMS } from '../src/protocol/problems.ts'
import { createOperator } from '../src/durable/index.ts'
import { header, json, problemOf, text, wrapStore } from './adapters/run-express.ts'
import { chargeAt, openFile, openShop, openTimedShop, TOKEN, userOf } from './checklist/shop.ts'
import { askable, durableFixture, payment } from './durable/operations/durable-fixture.ts'
import { Provider, type Charge } from './durable/operations/provider.ts'
import { setup as relaySetup } from './durable/outbox/relay-fixture.ts'

const DAY_MS = 24 * 60 * 60_000
const REPLAYED = 'idempotent-replayed'
const EXPIRED = [410, PROBLEMS.key_expired.code]
const BY = { who: 'ops@example.com', why: 'the bug is fixed' }

describe('threats', () => {
  it('1. a race of first requests on two nodes runs the work once', async () => {
    const file = openFile()
    const nodes = await Promise.all([1, 2].map(() => openShop({ store: file.open() })))
    const racing = Array.from({ length: 10 }, (_, n) => nodes[n % 2]!.pay({ key: 'k' }))
    const statuses = (await Promise.all(racing)).map(({ status }) => status)
    expect(statuses.filter((status) => status === 201).length).toBeGreaterThan(0)
    expect(statuses.every((status) => status === 201 || status === 409)).toBe(true)
    expect(nodes.flatMap(({ charges }) => charges)).toHaveLength(1)
  })

  it('2. a tenant that sends the key of another tenant gets its own reply', async () => {
    const shop = await openTimedShop()
    const first = await shop.pay({ key: 'k', token: 'acme/ada/1' })
    const other = await shop.pay({ key: 'k', token: 'evil/eve/1' })
    expect([other.status, header(other, REPLAYED)]).toEqual([201, undefined])
    expect(text(other)).not.toBe(text(first))
    expect(shop.charges.map(({ tenant }) => tenant)).toEqual(['acme', 'evil'])
  })

  it('3. a key that is sent with another body gets 422, and the work does not run', async () => {
    const shop = await openTimedShop()
    await shop.pay({ key: 'k', amountCents: 10 })
    const reused = await shop.pay({ key: 'k', amountCents: 20 })
    const { code } = PROBLEMS.key_reused_with_different_payload
    expect(problemOf(reused)).toEqual([422, code])
    expect(shop.charges).toHaveLength(1)
  })

  it('4. a charge whose answer is lost is found at the provider, and not repeated', async () => {
    const { provider, run } = durableFixture()
    const pay = payment(askable(provider))
    provider.faults.push('effect then lost')
    const first = await run(pay, { amount: 500 })
    expect(first).toMatchObject({ kind: 'ran', status: 201, body: { chargeId: 'ch_1' } })
    expect(await run(pay, { amount: 500 })).toEqual({ ...first, kind: 'replayed' })
    expect([provider.calls.length, provider.questions.length]).toEqual([1, 1])
    expect(provider.ledger).toHaveLength(1)
  })

  it('5. a request without a key is refused, and a call without one is reported', async () => {
    const shop = await openTimedShop()
    expect(problemOf(await shop.pay())).toEqual([400, PROBLEMS.key_missing.code])
    expect(shop.charges).toEqual([])
    const { provider, run, events } = durableFixture()
    const send = async ({ request }: { readonly request: { readonly amount: number } }) =>
      (await provider.charge(request, 'no key')) as Charge
    const pay = payment({ ...askable(provider), send })
    await run(pay, { amount: 500 })
    expect(events).toContainEqual(
      expect.objectContaining({ kind: 'effect_without_key', name: pay.name, phase: 'charge' }),
    )
  })

  it('6. a request gets 503 while the store fails, and its work does not run', async () => {
    const shop = await openTimedShop({
      wrap: (store) => wrapStore(store, { claim: () => Promise.reject(new Error('disk full')) }),
    })
    const { code } = PROBLEMS.store_unavailable
    expect(problemOf(await shop.pay({ key: 'k' }))).toEqual([503, code])
    expect(shop.charges).toEqual([])
  })

  it('7. a message that is sent again has the same key, and ends as a dead letter', async () => {
    const { add, relay, engine, clock } = relaySetup()
    const id = add({ amount: 500 })
    const keys: string[] = []
    const worker = relay((message) => {
      keys.push(message.downstreamKey)
      throw new Error('poison')
    })
    for (let n = 0; n < 100; n++) {
      await worker.runOnce()
      await clock.advanceAsync(DAY_MS)
    }
    expect(new Set(keys).size).toBe(1)
    expect(keys.length).toBeGreaterThan(1)
    const { messages } = await createOperator({ engine }).deadLetters()
    expect(messages.map((message) => [message.id, message.attempt])).toEqual([[id, keys.length]])
  })

  it('8. a caller that guesses keys gets 429, and other callers are not affected', async () => {
    const lookUps = new RateLimiterMemory({ points: 3, duration: 60 })
    const guard = { principal: userOf, limits: { lookUps } }
    const shop = await openTimedShop({ guard })
    for (const key of ['a', 'b', 'c', 'd']) await shop.pay({ key })
    const guess = (key: string) => shop.pay({ key, token: 'acme/eve/1', amountCents: 1 })
    const guesses = []
    for (const key of ['a', 'b', 'c', 'd']) guesses.push((await guess(key)).status)
    expect(guesses).toEqual([422, 422, 422, 429])
    expect(header(await shop.pay({ key: 'a', token: TOKEN }), REPLAYED)).toBe('true')
    expect((await guess('new')).status).toBe(201)
  })

  it('9. a request that is replayed after the expiry of its key does not run', async () => {
    // With a limit of its age.
    const aged = await openTimedShop({
      guard: { maxRequestAgeMs: DAY_MS, retentionMs: 2 * DAY_MS },
    })
    const sent = new Date(aged.clock.nowMs()).toUTCString()
    const captured = {
      path: '/payments',
      key: 'k',
      headers: { authorization: `Bearer ${TOKEN}`, 'repeatability-first-sent': sent },
      json: { amountCents: 500 },
    }
    expect((await aged.send(captured)).status).toBe(201)
    await aged.clock.advanceAsync(2 * DAY_MS)
    await aged.engine.reap()
    const late = await aged.send(captured)
    expect(problemOf(late)).toEqual([412, PROBLEMS.request_too_old.code])
    expect(aged.charges).toHaveLength(1)
    // With a refusal of the key.
    const refusing = await openTimedShop({ guard: { afterExpiry: { refuseForMs: 90 * DAY_MS } } })
    await refusing.pay({ key: 'k' })
    await refusing.clock.advanceAsync(30 * DAY_MS)
    await refusing.engine.reap()
    expect(problemOf(await refusing.pay({ key: 'k' }))).toEqual(EXPIRED)
    expect(refusing.charges).toHaveLength(1)
  })

  it('10. a 500 runs again, and an operator discards a wrong reply, but no effect', async () => {
    let isBroken = true
    const shop = await openTimedShop({
      handler: (till, req, res) => {
        if (!isBroken) return till.charge(req, res)
        res.status(Number(req.get('x-status'))).json({ error: 'a bug' })
      },
    })
    const send = (key: string, status: string) =>
      shop.send({
        path: '/payments',
        key,
        headers: { authorization: `Bearer ${TOKEN}`, 'x-status': status },
        json: { amountCents: 500 },
      })
    expect((await send('five', '500')).status).toBe(500)
    expect((await send('four', '422')).status).toBe(422)
    isBroken = false
    expect((await send('five', '500')).status).toBe(201)
    expect((await send('four', '422')).status).toBe(422)
    const operator = createOperator({ engine: shop.engine })
    const target = { scope: { tenant: 'acme', operation: 'POST /payments' }, key: 'four' }
    expect((await operator.discardReply(target, BY)).kind).toBe('done')
    expect((await send('four', '422')).status).toBe(201)
    // A reply that stands for an effect stays, unless the operator accepts a second run.
    expect(await operator.discardReply(target, BY)).toMatchObject({
      kind: 'refused',
      reason: 'effect_done',
    })
  })

  it('11. a client that still retries after the expiry is not charged twice', async () => {
    const provider = new Provider()
    const shop = await openTimedShop({ handler: chargeAt(provider) })
    const first = await shop.pay({ key: 'k' })
    expect(Date.parse(header(first, 'idempotency-expires')!)).toBe(shop.clock.nowMs() + DAY_MS)
    await shop.clock.advanceAsync(DAY_MS)
    await shop.engine.reap()
    const late = await shop.pay({ key: 'k' })
    expect([late.status, header(late, REPLAYED)]).toEqual([201, undefined])
    // The same downstream key: the provider recognises the charge.
    expect(provider.calls).toHaveLength(2)
    expect(provider.ledger).toHaveLength(1)
    expect(json(late)).toEqual(json(first))
  })

  it('12. a tenant that sprays keys gets 429 and leaves no rows', async () => {
    const newKeys = new RateLimiterMemory({ points: 5, duration: 60 })
    const shop = await openTimedShop({ guard: { limits: { newKeys } } })
    const statuses = []
    for (let n = 0; n < 50; n++) {
      statuses.push((await shop.pay({ key: `spray-${n}`, token: 'evil/eve/1' })).status)
    }
    expect(statuses.filter((status) => status === 429)).toHaveLength(45)
    expect(await shop.engine.list({ state: 'completed', limit: 100 })).toHaveLength(5)
    expect((await shop.pay({ key: 'k' })).status).toBe(201)
    await shop.clock.advanceAsync(DAY_MS)
    expect(await shop.engine.reap()).toBe(6)
  })

  it('13. a replay is the first reply, and a GET shows the present state', async () => {
    let state = 'paid'
    const shop = await openTimedShop({
      handler: (_till, _req, res) => void res.status(201).json({ state }),
    })
    const first = await shop.pay({ key: 'k' })
    state = 'refunded'
    const replay = await shop.pay({ key: 'k' })
    expect([text(replay), header(replay, REPLAYED)]).toEqual([text(first), 'true'])
    const shown = await shop.send({ method: 'GET', path: '/payments/1' })
    expect([shown.status, header(shown, REPLAYED)]).toEqual([200, undefined])
  })
})
