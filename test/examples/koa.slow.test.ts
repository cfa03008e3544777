import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { copyPackageTo, readCurl } from './payments/service.ts'
import { endRetention } from './retention-over.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')
let folders = 0

beforeAll(() => copyPackageTo(folder), 60_000)
afterAll(scratch.remove)

const newDataFolder = () => scratch.file(`data-${folders++}`)

/** Starts the example in a process that ends with the test. */
async function setup(dataFolder = newDataFolder()) {
  const child = spawn(process.execPath, ['examples/koa/main.ts'], {
    cwd: folder,
    env: { PATH: process.env['PATH'], PORT: '0', DATA_DIR: dataFolder },
  })
  const ended = once(child, 'close').then(([code]) => code as number | null)
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await ended
  })
  let [printed, errors] = ['', '']
  child.stderr.on('data', (chunk: Buffer) => (errors += chunk.toString()))
  await new Promise<void>((resolve, reject) => {
    child.stdout.on('data', (chunk: Buffer) => {
      printed += chunk.toString()
      if (printed.includes('Ctrl-C')) resolve()
    })
    child.once('close', () => reject(new Error(`the service did not start: ${errors}`)))
  })
  const curl = readCurl(printed)
  const order = (body = curl.body, headers: Record<string, string> = {}) =>
    fetch(curl.url, { method: 'POST', headers: { ...curl.headers, ...headers }, body })
  return { order, curl, dataFolder, ended, stop: () => child.kill('SIGTERM') }
}

it('the Koa example replays the order when the printed curl is run twice', async () => {
  const { order } = await setup()
  const first = await order()
  const firstText = await first.text()
  const second = await order()

  expect(first.status).toBe(201)
  expect(first.headers.get('idempotent-replayed')).toBeNull()
  expect(JSON.parse(firstText)).toEqual({ orderId: expect.any(String), sku: 'book-1' })
  expect(second.status).toBe(201)
  expect(second.headers.get('idempotent-replayed')).toBe('true')
  expect(second.headers.get('location')).toBe(first.headers.get('location'))
  expect(await second.text()).toBe(firstText)
  for (const reply of [first, second]) {
    expect(reply.headers.get('x-response-time')).toMatch(/^\d+ms$/)
  }
})

it('the Koa example requires a token, and keeps the keys of accounts apart', async () => {
  const { order } = await setup()
  const anonymous = await order(undefined, { Authorization: 'none' })
  expect([anonymous.status, anonymous.headers.get('www-authenticate')]).toEqual([401, 'Bearer'])
  expect((await order()).status).toBe(201)
  const ofB = await order(undefined, { Authorization: 'Bearer demo-b' })
  expect([ofB.status, ofB.headers.get('idempotent-replayed')]).toEqual([201, null])
  expect((await order('{ "sku": "book-2" }')).status).toBe(422)
  expect((await order('{}', { 'Idempotency-Key': 'other' })).status).toBe(400)
})

it('the Koa example replays an order after a restart, and shuts down cleanly', async () => {
  const { order, curl, dataFolder, ended, stop } = await setup()
  const first = await (await order()).text()
  stop()
  expect(await ended).toBe(0)
  const again = await setup(dataFolder)
  // Each start prints another random key.
  expect(again.curl.headers).not.toEqual(curl.headers)
  const replay = await again.order(curl.body, curl.headers)
  expect(replay.headers.get('idempotent-replayed')).toBe('true')
  expect(await replay.text()).toBe(first)
})

it('the Koa example answers a retry after the retention from the row of its order', async () => {
  const { order, dataFolder } = await setup()
  const first = await (await order()).text()
  endRetention(`${dataFolder}/koa.db`, 'reaped')
  const late = await order('{ "sku": "book-2" }')
  expect([late.status, late.headers.get('idempotent-replayed')]).toEqual([201, null])
  expect(await late.text()).toBe(first)
})
