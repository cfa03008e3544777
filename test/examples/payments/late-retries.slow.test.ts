/** Retries after the retention of their keys, on the reference service. */
import { randomUUID } from 'node:crypto'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { answer, startFakeProvider, type FakeProvider } from '../provider/fake-provider.ts'
import { endRetention } from '../retention-over.ts'
import { clientOf, isReplay, PAYMENT, type Client, type Reply } from './client.ts'
import { addressIn, copyPackageTo, spawnService, type Service } from './service.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')
const dataFolder = scratch.file('data')
const file = `${dataFolder}/payments.db`
let provider: FakeProvider
let service: Service
let client: Client

beforeAll(async () => {
  copyPackageTo(folder)
  provider = await startFakeProvider()
  service = spawnService({ folder, dataFolder, env: { PROVIDER_URL: provider.url } })
  client = clientOf(addressIn(await service.started))
}, 60_000)
afterAll(async () => {
  service?.signal('SIGKILL')
  await service?.ended
  provider?.close()
  scratch.remove()
})

function rows(sql: string, ...values: string[]): Record<string, unknown>[] {
  const db = new DatabaseSync(file, { readOnly: true, timeout: 5_000 })
  try {
    return db.prepare(sql).all(...values)
  } finally {
    db.close()
  }
}

/** A request under one key, and what the provider got from the account that it names. */
function request(path: string, body: object, account: string) {
  const key = randomUUID()
  const calls = () => provider.calls.filter((call) => call.request.account === account)
  return {
    send: (changed: object = {}) => client.post(path, { ...body, ...changed }, { key }),
    calls,
  }
}

const newAccount = () => `acc_${randomUUID()}`

function payment() {
  const customerId = newAccount()
  return request('/payments', { ...PAYMENT, customerId }, customerId)
}

function order() {
  const customerId = newAccount()
  return request('/orders', { customerId, sku: 'mug', quantity: 2 }, customerId)
}

async function refund() {
  const paid = payment()
  const { body } = await paid.send()
  const path = `/payments/${String(body['paymentId'])}/refunds`
  const one = request(path, { amountCents: 40 }, String(body['customerId']))
  return { ...one, calls: () => one.calls().filter(({ effect }) => effect.kind === 'refund') }
}

function transfer() {
  const toAccount = newAccount()
  const body = { toAccount, amountCents: 900, currency: 'USD' }
  const { send, calls } = request('/transfers', body, toAccount)
  /** A worker runs it, so the reply comes later. */
  const settled = (changed?: object) =>
    vi.waitUntil(
      async () => {
        const reply = await send(changed)
        return reply.status === 202 || reply.status === 409 ? undefined : reply
      },
      { timeout: 10_000, interval: 20 },
    )
  return { send: settled, calls }
}

const KINDS = [
  ['a payment', async () => payment(), { amountCents: 1 }],
  ['a refund', refund, { amountCents: 1 }],
  ['an order', async () => order(), { quantity: 1 }],
  ['a transfer', async () => transfer(), { amountCents: 1 }],
] as const

describe.each(KINDS)('a late retry of %s', (_, make, change) => {
  it('is refused with 410 after the retention, and moves no money', async () => {
    const { send, calls } = await make()
    expect((await send()).status).toBe(201)
    const before = calls().length
    endRetention(file, 'expired')
    const late = await send()
    expect([late.status, late.body['code']]).toEqual([410, 'idempotency_key_expired'])
    expect(calls()).toHaveLength(before)
  })

  it('is answered from its row when its record is gone, and moves no money', async () => {
    const { send, calls } = await make()
    const first = await send()
    const before = calls().length
    endRetention(file, 'reaped')
    const late = await send()
    expect([late.status, late.text]).toEqual([201, first.text])
    expect(late.headers.get('location')).toBe(first.headers.get('location'))
    expect(calls()).toHaveLength(before)
    expect(isReplay(await send())).toBe(true)
  })

  it('is declined again from its row', async () => {
    const { send } = await make()
    provider.onSend = ({ res, effect }) => answer(res, 201, { ...effect, status: 'declined' })
    const first = await send()
    provider.onSend = ({ res, effect }) => answer(res, 201, effect)
    expect(first.status).toBe(402)
    endRetention(file, 'reaped')
    const late = await send()
    expect([late.status, late.text]).toEqual([402, first.text])
  })

  it('with another body is refused, although its record is gone', async () => {
    const { send, calls } = await make()
    await send()
    const before = calls().length
    endRetention(file, 'reaped')
    const late = await send(change)
    expect([late.status, late.body['code']]).toEqual([422, 'key_reused'])
    expect(calls()).toHaveLength(before)
  })
})

describe('a late retry whose first attempt has not ended', () => {
  /** The provider refuses, which proves that nothing was done, and accepts from then on. */
  async function refusedOnce(send: () => Promise<Reply>): Promise<void> {
    provider.onSend = ({ res }) => answer(res, 503, { error: { code: 'refused' } })
    const refused = await send()
    provider.onSend = ({ res, effect }) => answer(res, 201, effect)
    expect([refused.status, refused.body['code']]).toEqual([503, 'provider_unavailable'])
    endRetention(file, 'reaped')
  }

  it('continues the pending payment, under the same key of the provider', async () => {
    const { send, calls } = payment()
    await refusedOnce(send)
    const late = await send()
    expect([late.status, late.body['status']]).toEqual([201, 'succeeded'])
    expect(new Set(calls().map(({ key }) => key)).size).toBe(1)
    const id = String(late.body['paymentId'])
    expect(rows('SELECT status FROM payment WHERE payment_id = ?', id)).toEqual([
      { status: 'succeeded' },
    ])
  })

  it('reserves neither the stock of its order nor the amount of its refund again', async () => {
    const stock = () => Number(rows("SELECT stock FROM product WHERE sku = 'mug'")[0]!['stock'])
    const before = stock()
    const ordered = order()
    await refusedOnce(ordered.send)
    expect((await ordered.send()).status).toBe(201)
    expect(stock()).toBe(before - 2)

    const refunded = await refund()
    await refusedOnce(refunded.send)
    const { body } = await refunded.send()
    const id = String(body['paymentId'])
    const sql = 'SELECT refunded_cents AS cents FROM payment WHERE payment_id = ?'
    expect(rows(sql, id)).toEqual([{ cents: 40 }])
  })
})

describe('a receipt', () => {
  it('is queued once for a payment, under an id that derives from its key', async () => {
    const { send } = payment()
    const { body } = await send()
    const id = String(body['paymentId'])
    const messages = () => rows('SELECT id FROM oncekey_record_message WHERE key = ?', id)
    const queued = messages()
    // Version 8 of a UUID: a hash. A random one would have another version.
    expect(queued).toEqual([{ id: expect.stringMatching(/^[0-9a-f]{8}-[0-9a-f]{4}-8/) }])
    endRetention(file, 'reaped')
    await send()
    expect(messages()).toEqual(queued)
  })
})
