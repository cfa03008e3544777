import { afterAll, beforeAll, expect, it } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { copyPackageTo } from './payments/service.ts'
import { startExample } from './web-example.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')

beforeAll(() => copyPackageTo(folder), 60_000)
afterAll(scratch.remove)

it('the fetch example pays once per key, and replays the reply after a restart', async () => {
  const dataFile = scratch.file('keys.db')
  const start = () => startExample(folder, 'examples/fetch/main.ts', dataFile)
  const pay = (address: string, amount: number) =>
    fetch(`${address}/payments`, {
      method: 'POST',
      headers: { 'Idempotency-Key': 'k', Authorization: 'Bearer a' },
      body: JSON.stringify({ amount }),
    })

  const before = await start()
  const first = await pay(before.address, 5)
  const paid = await first.text()
  expect([first.status, JSON.parse(paid)]).toMatchObject([201, { amount: 5, payments: 1 }])
  expect((await pay(before.address, 6)).status).toBe(422)
  expect(await before.stop()).toEqual({ code: 0, errors: '' })

  const after = await start()
  const retry = await pay(after.address, 5)
  expect([retry.status, await retry.text()]).toEqual([201, paid])
  expect(retry.headers.get('idempotent-replayed')).toBe('true')
})
