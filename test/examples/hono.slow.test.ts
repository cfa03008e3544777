import { afterAll, beforeAll, expect, it } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { copyPackageTo } from './payments/service.ts'
import { endRetention } from './retention-over.ts'
import { startExample } from './web-example.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')

beforeAll(() => copyPackageTo(folder), 60_000)
afterAll(scratch.remove)

it('the Hono example takes an order once, also after restart and retention', async () => {
  const dataFile = scratch.file('orders.db')
  const start = () => startExample(folder, 'examples/hono/main.ts', dataFile)
  const order = (address: string, key: string, account?: string) =>
    fetch(`${address}/orders`, {
      method: 'POST',
      headers: {
        'Content-Type': 'application/json',
        'Idempotency-Key': key,
        ...(account === undefined ? {} : { Authorization: `Bearer ${account}` }),
      },
      body: JSON.stringify({ sku: 'tea' }),
    })

  const before = await start()
  const first = await order(before.address, 'k', 'a')
  const placed = await first.text()
  expect([first.status, JSON.parse(placed)]).toMatchObject([201, { orders: 1 }])
  expect(await (await order(before.address, 'k', 'b')).json()).toMatchObject({ orders: 2 })
  expect((await order(before.address, 'k')).status).toBe(401)
  expect(await before.stop()).toEqual({ code: 0, errors: '' })

  const after = await start()
  const retry = await order(after.address, 'k', 'a')
  expect([retry.status, await retry.text()]).toEqual([201, placed])
  expect(retry.headers.get('idempotent-replayed')).toBe('true')
  expect(retry.headers.get('location')).toBe(first.headers.get('location'))
  expect(await (await order(after.address, 'new', 'a')).json()).toMatchObject({ orders: 3 })

  endRetention(dataFile, 'reaped')
  const late = await order(after.address, 'k', 'a')
  expect([late.status, await late.json()]).toEqual([201, { ...JSON.parse(placed), orders: 3 }])
})
