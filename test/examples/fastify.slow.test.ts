/** Runs the Fastify example as its README describes. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { copyPackageTo, readCurl } from './payments/service.ts'
import { endRetention } from './retention-over.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')

beforeAll(() => copyPackageTo(folder), 60_000)
afterAll(scratch.remove)

async function start(data = 'data') {
  const child = spawn(process.execPath, ['examples/fastify/main.ts'], {
    cwd: folder,
    env: { PATH: process.env['PATH'], PORT: '0', DATA_DIR: scratch.file(data) },
  })
  const ended = once(child, 'close')
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await ended
  })
  let printed = ''
  let errors = ''
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk.toString()
  })
  await new Promise<void>((resolve, reject) => {
    child.once('close', () => reject(new Error(`the example did not start: ${errors}`)))
    child.stdout.on('data', (chunk: Buffer) => {
      printed += chunk.toString()
      if (printed.includes('Ctrl-C')) resolve()
    })
  })
  const stop = async () => {
    child.kill('SIGTERM')
    const [code] = (await ended) as [number | null]
    return { code, errors }
  }
  return { curl: readCurl(printed), stop }
}

it('the Fastify example makes one order for a repeated curl, and shuts down cleanly', async () => {
  const { curl, stop } = await start()
  const order = (headers: Record<string, string> = {}, body = curl.body) => {
    const init = { method: 'POST', headers: { ...curl.headers, ...headers, connection: 'close' } }
    return fetch(curl.url, { ...init, body })
  }
  const first = await order()
  const retry = await order()
  expect([first.status, retry.status]).toEqual([201, 201])
  expect(await retry.text()).toBe(await first.text())
  expect(retry.headers.get('idempotent-replayed')).toBe('true')
  expect(retry.headers.get('location')).toBe(first.headers.get('location'))

  const other = await order({}, '{"sku":"book","quantity":2}')
  const unauthorized = await order({ Authorization: 'Bearer x' })
  const foreign = await order({ Authorization: 'Bearer demo-b' })
  const invalid = await order({ 'Idempotency-Key': 'order-2' }, '{"sku":""}')
  const statuses = [other, unauthorized, foreign, invalid].map(({ status }) => status)
  expect(statuses).toEqual([422, 401, 201, 400])

  const { Authorization } = curl.headers
  const headers = { Authorization: Authorization!, connection: 'close' }
  const orders = (await (await fetch(curl.url, { headers })).json()) as unknown[]
  expect(orders).toHaveLength(1)
  expect(await stop()).toEqual({ code: 0, errors: '' })
})

it('the Fastify example keeps an order after a restart and after the retention', async () => {
  const before = await start('kept')
  const init = { ...before.curl, method: 'POST' }
  const first = await (await fetch(before.curl.url, init)).text()
  await before.stop()
  const after = await start('kept')
  const retry = await fetch(after.curl.url, init)
  expect(retry.headers.get('idempotent-replayed')).toBe('true')
  expect(await retry.text()).toBe(first)

  endRetention(`${scratch.file('kept')}/fastify.db`, 'reaped')
  const late = await fetch(after.curl.url, init)
  expect([late.headers.get('idempotent-replayed'), await late.text()]).toEqual([null, first])
  const { Authorization } = after.curl.headers
  const orders = await fetch(after.curl.url, { headers: { Authorization: Authorization! } })
  expect(await orders.json()).toHaveLength(1)
})
