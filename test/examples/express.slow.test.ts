import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { expect, it, onTestFinished } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { copyPackageTo } from './payments/service.ts'
import { endRetention } from './retention-over.ts'

it(
  'the Express example makes one order per key, also after the retention, and shuts down cleanly',
  { timeout: 120_000 },
  async () => {
    const scratch = scratchFolder()
    onTestFinished(scratch.remove)
    const folder = scratch.file('package')
    copyPackageTo(folder)
    const child = spawn(process.execPath, ['examples/express/main.ts'], {
      cwd: folder,
      env: { PATH: process.env['PATH'], PORT: '0', DATA_DIR: scratch.file('.') },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    onTestFinished(() => {
      child.kill('SIGKILL')
    })
    const ended = once(child, 'close')
    const [line] = (await once(child.stdout, 'data')) as [Buffer]
    const base = /http:\S+/.exec(line.toString())![0]

    const post = (path: string, body: object, key?: string) =>
      fetch(base + path, {
        method: 'POST',
        headers: {
          'Content-Type': 'application/json',
          Connection: 'close',
          ...(key === undefined ? {} : { 'Idempotency-Key': key }),
        },
        body: JSON.stringify(body),
      })
    const first = await post('/orders', { sku: 'tea' }, 'k-1')
    const order = (await first.json()) as { id: string }
    expect([first.status, order]).toEqual([201, { id: expect.any(String), sku: 'tea' }])
    const retry = await post('/orders', { sku: 'tea' }, 'k-1')
    expect([retry.status, await retry.json()]).toEqual([201, order])
    expect(retry.headers.get('idempotent-replayed')).toBe('true')
    expect(retry.headers.get('location')).toBe(`/orders/${order.id}`)
    expect((await post('/orders', { sku: 'milk' }, 'k-1')).status).toBe(422)
    expect((await post('/orders', { sku: 'tea' })).status).toBe(400)
    for (let n = 0; n < 2; n++) {
      const legacy = await post('/legacy/orders', { sku: 'milk', requestId: 'r-1' })
      expect(legacy.status).toBe(201)
    }
    endRetention(scratch.file('orders.db'), 'reaped')
    const late = await post('/orders', { sku: 'milk' }, 'k-1')
    expect([late.status, await late.json()]).toEqual([201, order])
    const orders = (await (await fetch(`${base}/orders`)).json()) as { sku: string }[]
    expect(orders.map(({ sku }) => sku).toSorted()).toEqual(['milk', 'tea'])

    child.kill('SIGTERM')
    expect(await ended).toEqual([0, null])
  },
)
