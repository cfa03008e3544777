import { randomUUID } from 'node:crypto'
import { mkdirSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { tablesFor } from '../../../examples/payments/database/schema.ts'
import { SIGNATURE_HEADER, type ProviderEvent } from '../../../examples/provider/contract.ts'
import { sign } from '../../../examples/provider/signature.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import {
  answer,
  answerFound,
  answerNotFound,
  startFakeProvider,
  type FakeProvider,
} from '../provider/fake-provider.ts'
import { clientOf, isReplay, PAYMENT, toReply, type Client } from './client.ts'
import { addressIn, copyPackageTo, spawnService, startService, type Service } from './service.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')
const SECRET = 'known-to-both'
let folders = 0
let shared: Service
let sharedData: string
let client: Client

beforeAll(async () => {
  copyPackageTo(folder)
  sharedData = newDataFolder()
  shared = spawnService({ folder, dataFolder: sharedData })
  client = clientOf(addressIn(await shared.started))
}, 60_000)
afterAll(async () => {
  shared?.signal('SIGKILL')
  await shared?.ended
  scratch.remove()
})

const newDataFolder = () => scratch.file(`data-${folders++}`)
const newKey = () => randomUUID()

/** Reads committed rows from outside the service. */
function rowsIn(dataFolder: string, sql: string): Record<string, unknown>[] {
  const db = new DatabaseSync(`${dataFolder}/payments.db`, { readOnly: true, timeout: 5_000 })
  try {
    return db.prepare(sql).all()
  } finally {
    db.close()
  }
}

describe('refunds', () => {
  async function pay(amountCents: number) {
    const body = { ...PAYMENT, amountCents }
    const key = newKey()
    const paid = await client.post('/payments', body, { key })
    const path = paid.headers.get('location')!
    return { paid, path, replay: () => client.post('/payments', body, { key }) }
  }

  it('a refund shows in the payment, whose replay is still its first 201', async () => {
    const { paid, path, replay } = await pay(100)
    const refunded = await client.post(`${path}/refunds`, { amountCents: 40 }, { key: newKey() })
    expect(refunded.status).toBe(201)
    expect(refunded.body).toEqual({
      refundId: expect.any(String),
      paymentId: paid.body['paymentId'],
      status: 'succeeded',
      amountCents: 40,
      providerRefundId: expect.stringMatching(/^re_/),
    })
    const shown = await client.get(refunded.headers.get('location')!)
    expect(shown.body).toMatchObject({ ...refunded.body, createdAt: expect.any(String) })
    const partly = { status: 'partially_refunded', refundedCents: 40 }
    expect((await client.get(path)).body).toMatchObject(partly)

    await client.post(`${path}/refunds`, { amountCents: 60 }, { key: newKey() })
    const wholly = { status: 'refunded', refundedCents: 100 }
    expect((await client.get(path)).body).toMatchObject(wholly)
    const again = await replay()
    expect([again.status, isReplay(again), again.text]).toEqual([201, true, paid.text])
  })

  it('concurrent refunds never exceed the payment', async () => {
    const { path } = await pay(100)
    const refunds = Array.from({ length: 5 }, () =>
      client.post(`${path}/refunds`, { amountCents: 30 }, { key: newKey() }),
    )
    const replies = await Promise.all(refunds)
    const refused = replies.filter(({ status }) => status === 409)
    expect(replies.filter(({ status }) => status === 201)).toHaveLength(3)
    expect(refused.map(({ body }) => body['code'])).toEqual(
      Array.from({ length: 2 }, () => 'payment_not_refundable'),
    )
    const expected = { status: 'partially_refunded', refundedCents: 90 }
    expect((await client.get(path)).body).toMatchObject(expected)
  })

  it('refunds are refused for payments of other tenants, unknown and failed payments', async () => {
    const { path } = await pay(100)
    const declined = await client.post(
      '/payments',
      { ...PAYMENT, customerId: 'declined' },
      { key: newKey() },
    )
    const body = { amountCents: 1 }
    const ofOther = await client.post(`${path}/refunds`, body, { key: newKey(), token: 'demo-b' })
    const ofNobody = await client.post('/payments/none/refunds', body, { key: newKey() })
    const unpaid = `/payments/${String(declined.body['paymentId'])}/refunds`
    const ofUnpaid = await client.post(unpaid, body, { key: newKey() })

    expect([ofOther.status, ofOther.body['code']]).toEqual([404, 'payment_not_found'])
    expect([ofNobody.status, ofNobody.body['code']]).toEqual([404, 'payment_not_found'])
    expect([ofUnpaid.status, ofUnpaid.body['code']]).toEqual([409, 'payment_not_refundable'])
  })
})

describe('orders', () => {
  const stockOf = (sku: string) =>
    rowsIn(sharedData, `SELECT stock FROM product WHERE sku = '${sku}'`)[0]!['stock']

  it('an order reserves the stock, captures the money and confirms', async () => {
    const before = Number(stockOf('mug'))
    const body = { customerId: 'cus_1', sku: 'mug', quantity: 2 }
    const ordered = await client.post('/orders', body, { key: newKey() })
    expect(ordered.status).toBe(201)
    expect(ordered.body).toEqual({
      orderId: expect.any(String),
      status: 'confirmed',
      sku: 'mug',
      quantity: 2,
      totalCents: 2_500,
      captureId: expect.stringMatching(/^ca_/),
    })
    expect(stockOf('mug')).toBe(before - 2)
    const shown = await client.get(ordered.headers.get('location')!)
    expect(shown.body).toMatchObject({ ...ordered.body, customerId: 'cus_1' })
  })

  it('an order returns the stock when the payment is declined', async () => {
    const before = stockOf('tea')
    const body = { customerId: 'declined', sku: 'tea', quantity: 5 }
    const key = newKey()
    const declined = await client.post('/orders', body, { key })
    expect([declined.status, declined.body['code']]).toEqual([402, 'payment_declined'])
    const again = await client.post('/orders', body, { key })
    expect([isReplay(again), again.text]).toEqual([true, declined.text])
    expect(stockOf('tea')).toBe(before)
    const shown = await client.get(`/orders/${String(declined.body['orderId'])}`)
    expect(shown.body).toMatchObject({ status: 'declined', captureId: null })
  })

  it('concurrent orders never sell more than the stock', async () => {
    const body = { customerId: 'cus_1', sku: 'teapot', quantity: 1 }
    const orders = Array.from({ length: 5 }, () => client.post('/orders', body, { key: newKey() }))
    const replies = await Promise.all(orders)
    expect(replies.filter(({ status }) => status === 201)).toHaveLength(3)
    const soldOut = replies.filter(({ status }) => status === 409)
    expect(soldOut.map(({ body }) => body['code'])).toEqual(['sold_out', 'sold_out'])
    expect(stockOf('teapot')).toBe(0)

    const unknown = await client.post('/orders', { ...body, sku: 'coffee' }, { key: newKey() })
    expect([unknown.status, unknown.body['code']]).toEqual([404, 'product_not_found'])
  })
})

describe('transfers', () => {
  it('a transfer is accepted, processed, and then answered with its result', async () => {
    const body = { toAccount: 'acct_1', amountCents: 900, currency: 'USD' }
    const key = newKey()
    const accepted = await client.post('/transfers', body, { key })
    expect(accepted.status).toBe(202)
    expect(accepted.headers.get('retry-after')).toBeTruthy()
    const place = accepted.headers.get('location')!
    expect(place).toMatch(/^\/operations\//)
    expect((await client.get(place, 'demo-b')).status).toBe(404)

    const done = await vi.waitUntil(
      async () => {
        const asked = await client.get(place)
        return isReplay(asked) ? asked : undefined
      },
      { timeout: 10_000 },
    )
    expect(done.status).toBe(201)
    expect(done.body).toEqual({
      transferId: expect.any(String),
      status: 'paid',
      amountCents: 900,
      toAccount: 'acct_1',
      payoutId: expect.stringMatching(/^po_/),
    })
    const retried = await client.post('/transfers', body, { key })
    expect([retried.status, retried.text]).toEqual([201, done.text])
    const shown = await client.get(done.headers.get('location')!)
    expect(shown.body).toMatchObject({ ...done.body, currency: 'USD' })
  })
})

describe('ledger', () => {
  it('the ledger has one entry and one receipt for each payment', async () => {
    const key = newKey()
    const paid = await client.post('/payments', PAYMENT, { key })
    await client.post('/payments', PAYMENT, { key })
    const paymentId = String(paid.body['paymentId'])
    const booked = 'SELECT kind, amount_cents, provider_id, tenant FROM entry'
    expect(rowsIn(sharedData, `${booked} WHERE reference = '${paymentId}'`)).toEqual([
      {
        kind: 'charge',
        amount_cents: 990,
        provider_id: paid.body['chargeId'],
        tenant: 'tenant-a',
      },
    ])
    const receipts = () =>
      rowsIn(sharedData, `SELECT tenant FROM receipt WHERE payment_id = '${paymentId}'`)
    await vi.waitUntil(() => receipts().length > 0, { timeout: 10_000 })
    expect(receipts()).toEqual([{ tenant: 'tenant-a' }])
  })

  it('the ledger is compared with that of the provider once a day is over', async () => {
    const dataFolder = newDataFolder()
    mkdirSync(dataFolder)
    const db = new DatabaseSync(`${dataFolder}/payments.db`)
    for (const table of tablesFor({ text: () => 'TEXT', tableOptions: '' })) db.exec(table)
    const insert = db.prepare('INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?)')
    const yesterday = new Date(Date.now() - 36 * 3_600_000).toISOString()
    insert.run('entry-1', 'tenant-a', 'charge', 'payment-1', 1, 'ch_none', 'record-1', yesterday)
    db.close()

    const said = await startService({ folder, dataFolder }).says('differs from the provider')
    expect(said).toContain('"missing_theirs":{"count":1')
    expect(said).toContain('ch_none')
  })
})

describe('a provider that fails', () => {
  let service: Service
  let provider: FakeProvider
  let address: string

  beforeAll(async () => {
    provider = await startFakeProvider()
    service = spawnService({
      folder,
      dataFolder: newDataFolder(),
      env: { PROVIDER_URL: provider.url, WEBHOOK_SECRET: SECRET, RECONCILE_FIRST_MS: '20' },
    })
    address = addressIn(await service.started)
  })
  afterAll(async () => {
    service?.signal('SIGKILL')
    await service?.ended
    provider?.close()
  })

  /** A client that pays under one key, and the requests that the provider got from it. */
  function setup() {
    const key = newKey()
    const customerId = `cus_${key}`
    const { post, get } = clientOf(address)
    const pay = () => post('/payments', { ...PAYMENT, customerId }, { key })
    const calls = () => provider.calls.filter(({ request }) => request.account === customerId)
    /** A worker may process the payment at the same time. */
    const paid = () =>
      vi.waitUntil(
        async () => {
          const reply = await pay()
          return reply.status === 201 ? reply : undefined
        },
        { timeout: 10_000, interval: 100 },
      )
    return { pay, paid, calls, get }
  }

  it('a provider whose answer was lost is queried, and gets no second request', async () => {
    const { pay, calls } = setup()
    provider.onSend = ({ res }) => res.destroy()
    provider.onFind = answerFound
    expect((await pay()).status).toBe(201)
    expect(calls()).toHaveLength(1)
  })

  it.each([
    ['an error', 500, { error: { code: 'internal_error' } }],
    ['a 503 of an intermediary', 503, 'try later'],
    ['a key that was used for another request', 422, { error: { code: 'key_reused' } }],
    ['a request that it reports as invalid', 400, { error: { code: 'invalid_request' } }],
    ['an answer without a known meaning', 201, { hello: 'world' }],
  ])('a provider that answers with %s leaves the outcome unknown', async (_, status, body) => {
    const { pay, calls } = setup()
    provider.onSend = ({ res }) => answer(res, status, body)
    provider.onFind = answerNotFound
    for (const reply of [await pay(), await pay()]) {
      expect([reply.status, reply.body['code']]).toEqual([409, 'idempotency_outcome_unknown'])
      expect(Number(reply.headers.get('retry-after'))).toBeGreaterThan(0)
    }
    expect(calls()).toHaveLength(1)
  })

  it('a provider that reports another effect under our key is not believed', async () => {
    const { pay } = setup()
    provider.onSend = ({ res }) => res.destroy()
    provider.onFind = (res, call) => answer(res, 200, { ...call?.effect, amountCents: 1 })
    const reply = await pay()
    expect([reply.status, reply.body['code']]).toEqual([409, 'idempotency_outcome_unknown'])
  })

  it('a provider that certainly did nothing gets the same request again', async () => {
    const { pay, paid, calls } = setup()
    provider.onSend = ({ res }) => answer(res, 503, { error: { code: 'refused' } })
    provider.onFind = answerNotFound
    const refused = await pay()
    expect([refused.status, refused.body['code']]).toEqual([503, 'provider_unavailable'])
    expect(refused.headers.get('retry-after')).toBe('1')

    provider.onSend = ({ res, effect }) => answer(res, 201, effect)
    expect((await paid()).body).toMatchObject({ status: 'succeeded' })
    expect(new Set(calls().map(({ key }) => key)).size).toBe(1)
  })

  async function deliver(event: object, { secret = SECRET, now = Date.now() } = {}) {
    const body = JSON.stringify(event)
    const headers = { [SIGNATURE_HEADER]: sign({ body, secret, now }) }
    const response = fetch(`${address}/webhooks/provider`, { method: 'POST', headers, body })
    return toReply(await response)
  }

  it('a webhook of the provider resolves an unknown payment', async () => {
    const { pay, paid, calls, get } = setup()
    provider.onSend = ({ res }) => res.destroy()
    provider.onFind = answerNotFound
    expect((await pay()).status).toBe(409)

    const { effect } = calls()[0]!
    const event: ProviderEvent = {
      id: 'ev_1',
      type: 'effect.succeeded',
      createdAt: effect.createdAt,
      effect,
    }
    const forged = await deliver(event, { secret: 'another' })
    const old = await deliver(event, { now: Date.now() - 400_000 })
    expect([forged.status, forged.body['code']]).toEqual([401, 'invalid_signature'])
    expect([old.status, old.body['code']]).toEqual([401, 'invalid_signature'])
    const received = await deliver({ ...event, id: 'ev_0', type: 'effect.received' })
    expect(received.body).toEqual({ status: 'no_verdict' })
    expect((await pay()).status).toBe(409)

    const first = await deliver(event)
    const second = await deliver(event)
    expect([first.status, first.body]).toEqual([200, { status: 'done' }])
    expect([second.status, second.body]).toEqual([200, { status: 'seen_before' }])
    const reply = await paid()
    expect(reply.body['chargeId']).toBe(effect.id)
    const shown = await get(reply.headers.get('location')!)
    expect(shown.body).toMatchObject({ status: 'succeeded' })
    expect(calls()).toHaveLength(1)
  })

  it('a webhook with an unknown event is accepted and ignored', async () => {
    const reply = await deliver({ hello: 'world' })
    expect([reply.status, reply.body['code']]).toEqual([400, 'unreadable_event'])
  })
})
