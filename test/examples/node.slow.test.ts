import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { copyPackageTo } from './payments/service.ts'
import { endRetention } from './retention-over.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')
let folders = 0

beforeAll(() => copyPackageTo(folder), 60_000)
afterAll(scratch.remove)

/** Starts the example in a process that ends with the test. */
async function start() {
  const dataFolder = scratch.file(`data-${folders++}`)
  const child = spawn(process.execPath, ['examples/node/main.ts'], {
    cwd: folder,
    env: { PATH: process.env['PATH'], PORT: '0', DATA_DIR: dataFolder },
  })
  let errors = ''
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk.toString()
  })
  const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, errors }))
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await ended
  })
  const [printed] = (await Promise.race([once(child.stdout, 'data'), ended.then(() => [])])) as [
    Buffer | undefined,
  ]
  const address = /http:\S+/.exec(printed?.toString() ?? '')?.[0]
  if (address === undefined) throw new Error(`the example did not start: ${errors}`)
  const transfer = (key: string, body: unknown, token = 'ann') =>
    fetch(`${address}/transfers`, {
      method: 'POST',
      headers: {
        Authorization: `Bearer ${token}`,
        'Content-Type': 'application/json',
        'Idempotency-Key': key,
        Connection: 'close',
      },
      body: JSON.stringify(body),
    })
  return { address, transfer, dataFolder, stop: () => child.kill('SIGTERM'), ended }
}

const HALF = { from: 'ann', to: 'bob', amount: 50 }

it('the Node example moves the money once for repeated requests', async () => {
  const { transfer, stop, ended } = await start()
  const replies = await Promise.all([1, 2, 3].map(() => transfer('k-1', HALF)))
  for (const { status } of replies) expect([201, 409]).toContain(status)
  const first = await transfer('k-1', HALF)
  expect(first.headers.get('idempotent-replayed')).toBe('true')
  expect(await first.json()).toEqual({ transferId: expect.any(String), balance: 50 })

  expect(await (await transfer('k-2', HALF)).json()).toMatchObject({ balance: 0 })
  const poor = await transfer('k-3', HALF)
  expect([poor.status, await poor.json()]).toEqual([422, { error: 'not enough money' }])
  stop()
  expect(await ended).toEqual({ code: 0, errors: '' })
})

it('the Node example refuses a retry after the retention, and moves no money', async () => {
  const { transfer, dataFolder } = await start()
  expect((await transfer('k-1', HALF)).status).toBe(201)
  endRetention(`${dataFolder}/node.db`, 'expired')
  expect((await transfer('k-1', HALF)).status).toBe(410)
  expect(await (await transfer('k-2', HALF)).json()).toMatchObject({ balance: 0 })
})

it('the Node example answers malformed and unauthorized requests', async () => {
  const { transfer, address } = await start()
  expect((await transfer('k-1', { from: 'ann' })).status).toBe(400)
  expect((await transfer('k-1', { from: 'ann' })).headers.get('idempotent-replayed')).toBe('true')
  expect((await transfer('k-1', HALF)).status).toBe(422)
  expect((await transfer('k-1', HALF, 'bob')).status).toBe(201)
  expect((await fetch(`${address}/transfers`, { method: 'POST' })).status).toBe(401)
})
