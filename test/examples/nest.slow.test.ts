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

/** Starts the example as its first lines describe. */
async function start(dataFolder: string) {
  const child = spawn(process.execPath, ['examples/nest/start.ts'], {
    cwd: folder,
    env: { PATH: process.env['PATH'], PORT: '0', DATA_DIR: dataFolder },
  })
  let printed = ''
  child.stderr.on('data', (chunk: Buffer) => {
    printed += chunk.toString()
  })
  const ended = once(child, 'close').then(([code]) => code as number | null)
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await ended
  })
  await new Promise<void>((resolve, reject) => {
    child.stdout.on('data', (chunk: Buffer) => {
      printed += chunk.toString()
      if (printed.includes('Ctrl-C')) resolve()
    })
    child.once('close', () => reject(new Error(`the service did not start: ${printed}`)))
  })
  const curl = readCurl(printed)
  const pay = (more: Record<string, string> = {}, body = curl.body) =>
    fetch(curl.url, { method: 'POST', headers: { ...curl.headers, ...more }, body })
  return { curl, pay, ended, stop: () => child.kill('SIGTERM') }
}

it('the Nest example pays once, after a restart and after the retention, too', async () => {
  const dataFolder = scratch.file('data')
  const service = await start(dataFolder)
  const first = await service.pay()
  const payment = (await first.json()) as { id: string }
  expect(first.status).toBe(201)
  expect(payment).toEqual({ id: expect.any(String), amountCents: 990 })
  expect(first.headers.get('idempotent-replayed')).toBeNull()

  const second = await service.pay()
  expect(await second.json()).toEqual(payment)
  expect(second.headers.get('idempotent-replayed')).toBe('true')
  expect(second.headers.get('location')).toBe(`/payments/${payment.id}`)

  expect((await service.pay({}, '{"amountCents":1}')).status).toBe(422)
  expect((await service.pay({ 'Idempotency-Key': 'other' }, '{}')).status).toBe(400)
  expect((await service.pay({ Authorization: 'Bearer unknown' })).status).toBe(401)
  const others = await service.pay({ Authorization: 'Bearer demo-b' })
  expect(((await others.json()) as { id: string }).id).not.toBe(payment.id)

  service.stop()
  await service.ended
  const again = await start(dataFolder)
  const third = await again.pay(service.curl.headers)
  expect([third.headers.get('idempotent-replayed'), await third.json()]).toEqual(['true', payment])
  const url = `${again.curl.url}/${payment.id}`
  const read = await fetch(url, { headers: again.curl.headers })
  expect(await read.json()).toEqual(payment)

  endRetention(`${dataFolder}/nest.db`, 'reaped')
  const late = await again.pay(service.curl.headers, '{"amountCents":1}')
  expect([late.headers.get('idempotent-replayed'), await late.json()]).toEqual([null, payment])
})
