import { once } from 'node:events'
import { type ClientRequest, type IncomingMessage, request } from 'node:http'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { layOutPackage, readCurl, startService } from './payments-service.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')
let folders = 0

beforeAll(() => layOutPackage(folder), 60_000)
afterAll(scratch.remove)

const newDataFolder = () => scratch.file(`data-${folders++}`)

async function setup(dataFolder = newDataFolder()) {
  const service = startService({ folder, dataFolder })
  const printed = await service.started
  const curl = readCurl(printed)
  const address = new URL(curl.url).origin
  const pay = (key: string, body: string, token = 'demo-a') =>
    fetch(curl.url, {
      method: 'POST',
      headers: {
        'Content-Type': 'application/json',
        'Idempotency-Key': key,
        Authorization: `Bearer ${token}`,
      },
      body,
    })
  const get = (path: string, token = 'demo-a') =>
    fetch(`${address}${path}`, { headers: { Authorization: `Bearer ${token}` } })
  return { ...service, dataFolder, curl, address, pay, get }
}

const PAYMENT = JSON.stringify({ customerId: 'cus_7', amountCents: 990, currency: 'KRW' })

it('replays the payment when the printed curl is run twice', async () => {
  const { curl } = await setup()
  const first = await fetch(curl.url, { ...curl, method: 'POST' })
  const firstText = await first.text()
  const second = await fetch(curl.url, { ...curl, method: 'POST' })

  expect(first.status).toBe(201)
  expect(first.headers.get('idempotent-replayed')).toBeNull()
  expect(JSON.parse(firstText)).toEqual({ paymentId: expect.any(String), status: 'created' })
  expect(first.headers.get('location')).toBe(`/payments/${JSON.parse(firstText).paymentId}`)
  expect(second.status).toBe(201)
  expect(second.headers.get('idempotent-replayed')).toBe('true')
  expect(second.headers.get('location')).toBe(first.headers.get('location'))
  expect(await second.text()).toBe(firstText)
})

it('shows a payment to its tenant and to nobody else', async () => {
  const { pay, get } = await setup()
  const path = (await pay('k', PAYMENT)).headers.get('location')!
  const own = await get(path)

  expect(own.status).toBe(200)
  expect(await own.json()).toMatchObject({ ...JSON.parse(PAYMENT), status: 'created' })
  expect((await get(path, 'demo-b')).status).toBe(404)
  expect((await get('/payments/none')).status).toBe(404)
})

it('keeps the same key of two tenants apart', async () => {
  const { pay } = await setup()
  const ofA = await pay('shared', PAYMENT)
  const ofB = await pay(
    'shared',
    JSON.stringify({ ...JSON.parse(PAYMENT), amountCents: 1 }),
    'demo-b',
  )

  expect([ofA.status, ofB.status]).toEqual([201, 201])
  expect(ofB.headers.get('idempotent-replayed')).toBeNull()
  expect(await ofB.text()).not.toBe(await ofA.text())
})

it('asks for a token first, then for a key', async () => {
  const { curl, pay } = await setup()
  const anonymous = await fetch(curl.url, { method: 'POST', body: PAYMENT })
  const stranger = await pay('k', PAYMENT, 'demo-c')
  const { 'Idempotency-Key': _key, ...headers } = curl.headers
  const keyless = await fetch(curl.url, { method: 'POST', headers, body: curl.body })

  for (const reply of [anonymous, stranger]) {
    expect(reply.status).toBe(401)
    expect(reply.headers.get('www-authenticate')).toMatch(/^Bearer/)
    expect(reply.headers.get('content-type')).toMatch('application/problem+json')
  }
  expect(keyless.status).toBe(400)
  expect(await keyless.json()).toMatchObject({ code: 'idempotency_key_missing' })
})

it('refuses the key of another request', async () => {
  const { pay } = await setup()
  await pay('k', PAYMENT)
  const other = await pay('k', JSON.stringify({ ...JSON.parse(PAYMENT), amountCents: 1 }))
  expect(other.status).toBe(422)
})

const INVALID: readonly (readonly [body: string, fields: readonly string[]])[] = [
  ['{}', ['customerId', 'amountCents', 'currency']],
  ['{ "customerId": " ", "amountCents": 1, "currency": "USD" }', ['customerId']],
  ['{ "customerId": "c", "amountCents": 0, "currency": "EUR" }', ['amountCents', 'currency']],
  ['{ "customerId": "c", "amountCents": 1.5, "currency": "USD" }', ['amountCents']],
  ['{ "customerId": "c", "amountCents": "1", "currency": "USD" }', ['amountCents']],
  ['[]', ['body']],
]

it('lists everything that is wrong with a payment', async () => {
  const { pay } = await setup()
  for (const [n, [body, fields]] of INVALID.entries()) {
    const reply = await pay(`key-${n}`, body)
    expect(reply.status).toBe(400)
    expect(reply.headers.get('content-type')).toMatch('application/problem+json')
    const problem = (await reply.json()) as { code: string; errors: { field: string }[] }
    expect(problem.code).toBe('invalid_payment')
    expect(problem.errors.map(({ field }) => field)).toEqual(fields)
  }
})

it('says that a body is no JSON', async () => {
  const { pay } = await setup()
  const reply = await pay('k', '{ "customerId": ')
  expect(reply.status).toBe(400)
  expect(reply.headers.get('content-type')).toMatch('application/problem+json')
  expect(await reply.json()).toMatchObject({ code: 'unreadable_request' })
})

it('says that it is well, without asking who wants to know', async () => {
  const { address } = await setup()
  const reply = await fetch(`${address}/healthz`)
  expect(reply.status).toBe(200)
  expect(await reply.json()).toEqual({ status: 'ok' })
})

it('still replays after it was killed and started again', async () => {
  const { pay, signal, ended, dataFolder } = await setup()
  const first = await pay('k', PAYMENT)
  signal('SIGKILL')
  await ended
  const again = await setup(dataFolder)
  const second = await again.pay('k', PAYMENT)

  expect(second.headers.get('idempotent-replayed')).toBe('true')
  const body = await second.text()
  expect(body).toBe(await first.text())
  expect((await again.get(`/payments/${JSON.parse(body).paymentId}`)).status).toBe(200)
})

it.each(['SIGTERM', 'SIGINT'] as const)('finishes what is under way on %s', async (name) => {
  const { curl, address, signal, ended, dataFolder } = await setup()
  const under = request(curl.url, {
    method: 'POST',
    // The server's "continue" proves that it has the request, and waits for the body.
    headers: { ...curl.headers, Expect: '100-continue', 'Content-Length': curl.body.length },
  })
  under.flushHeaders()
  await once(under, 'continue')
  signal(name)
  await untilRefused(address)
  const reply = await finish(under, curl.body)

  expect(reply.statusCode).toBe(201)
  expect(await text(reply)).toContain('"status":"created"')
  expect(await ended).toEqual({ code: 0, errors: '' })
  const again = await setup(dataFolder)
  const replay = await fetch(again.curl.url, { ...curl, method: 'POST' })
  expect(replay.headers.get('idempotent-replayed')).toBe('true')
})

it('says in one sentence that its port is in use, and ends', async () => {
  const { address } = await setup()
  const { port } = new URL(address)
  const { ended } = startService({ folder, dataFolder: newDataFolder(), port })
  const { code, errors } = await ended
  expect(code).toBe(1)
  expect(errors).toBe(`Port ${port} is in use; set PORT to another one, or to 0 for any.\n`)
})

it.each(['http', '65536', ''])('refuses PORT=%j and says what it must be', async (port) => {
  const { code, errors } = await startService({ folder, dataFolder: newDataFolder(), port }).ended
  expect(code).toBe(1)
  expect(errors).toBe(`PORT must be a number from 0 to 65535, got "${port}".\n`)
})

async function finish(under: ClientRequest, body: string): Promise<IncomingMessage> {
  under.end(body)
  const [reply] = await once(under, 'response')
  return reply as IncomingMessage
}

const CONNECTS_MAX = 10_000

/** Connects until the service listens no more: only then has it heard the signal. */
async function untilRefused(address: string): Promise<void> {
  const { port } = new URL(address)
  for (let tries = 0; tries < CONNECTS_MAX; tries++) {
    const socket = connect(Number(port), 'localhost')
    try {
      await once(socket, 'connect')
    } catch {
      return
    } finally {
      socket.destroy()
    }
  }
  throw new Error('the service still listens')
}
