import { once } from 'node:events'
import { type ClientRequest, type IncomingMessage, request } from 'node:http'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { clientOf, isReplay, keyOf, PAYMENT, toReply, type Client } from './client.ts'
import {
  addressIn,
  copyPackageTo,
  readCurl,
  spawnService,
  startService,
  type PrintedRequest,
  type Service,
} from './service.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')
let folders = 0
let shared: Service
let client: Client
let curl: PrintedRequest

beforeAll(async () => {
  copyPackageTo(folder)
  shared = spawnService({ folder, dataFolder: newDataFolder() })
  const printed = await shared.started
  client = clientOf(addressIn(printed))
  curl = readCurl(printed)
}, 60_000)
afterAll(async () => {
  shared?.signal('SIGKILL')
  await shared?.ended
  scratch.remove()
})

const newDataFolder = () => scratch.file(`data-${folders++}`)

async function setup(dataFolder = newDataFolder(), env: Record<string, string> = {}) {
  const service = startService({ folder, dataFolder, env })
  const printed = await service.started
  return { ...service, ...clientOf(addressIn(printed)), dataFolder, curl: readCurl(printed) }
}

it('replays the payment when the printed curl is run twice', async () => {
  const first = await toReply(await fetch(curl.url, { ...curl, method: 'POST' }))
  const second = await toReply(await fetch(curl.url, { ...curl, method: 'POST' }))

  expect(first.status).toBe(201)
  expect(isReplay(first)).toBe(false)
  expect(first.body).toEqual({
    paymentId: expect.any(String),
    status: 'succeeded',
    ...JSON.parse(curl.body),
    chargeId: expect.stringMatching(/^ch_/),
  })
  expect(first.headers.get('location')).toBe(`/payments/${String(first.body['paymentId'])}`)
  expect(second.status).toBe(201)
  expect(isReplay(second)).toBe(true)
  expect(second.headers.get('location')).toBe(first.headers.get('location'))
  expect(second.text).toBe(first.text)
})

it('declines a payment, and declines its retry with the same bytes', async () => {
  const body = { ...PAYMENT, customerId: 'declined' }
  const first = await client.post('/payments', body, { key: keyOf('declined') })
  const second = await client.post('/payments', body, { key: keyOf('declined') })

  expect(first.status).toBe(402)
  expect(first.headers.get('content-type')).toMatch('application/problem+json')
  expect(first.body).toMatchObject({ code: 'payment_declined', paymentId: expect.any(String) })
  expect(second.status).toBe(402)
  expect(isReplay(second)).toBe(true)
  expect(second.text).toBe(first.text)
  const shown = await client.get(`/payments/${String(first.body['paymentId'])}`)
  expect(shown.body).toMatchObject({ status: 'declined', refundedCents: 0 })
})

it('shows a payment only to its tenant', async () => {
  const paid = await client.post('/payments', PAYMENT, { key: keyOf('shown') })
  const path = paid.headers.get('location')!
  const own = await client.get(path)

  expect(own.status).toBe(200)
  const { paymentId, chargeId } = paid.body
  expect(own.body).toEqual({
    paymentId,
    status: 'succeeded',
    ...PAYMENT,
    refundedCents: 0,
    chargeId,
    createdAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
  })
  expect((await client.get(path, 'demo-b')).status).toBe(404)
  expect((await client.get('/payments/none')).body).toMatchObject({ code: 'payment_not_found' })
})

it('keeps the same key of two tenants apart', async () => {
  const ofA = await client.post('/payments', PAYMENT, { key: keyOf('common') })
  const other = { ...PAYMENT, amountCents: 1 }
  const ofB = await client.post('/payments', other, { key: keyOf('common'), token: 'demo-b' })

  expect([ofA.status, ofB.status]).toEqual([201, 201])
  expect(isReplay(ofB)).toBe(false)
  expect(ofB.body['paymentId']).not.toBe(ofA.body['paymentId'])
})

const POSTS = [
  ['/payments', PAYMENT],
  ['/payments/00000000-0000-8000-8000-000000000000/refunds', { amountCents: 1 }],
  ['/orders', { customerId: 'c', sku: 'tea', quantity: 1 }],
  ['/transfers', { toAccount: 'a', amountCents: 1, currency: 'USD' }],
] as const

it.each(POSTS)('checks the token before the key on POST %s', async (path, body) => {
  const stranger = await client.post(path, body, { key: keyOf('k'), token: 'demo-c' })
  expect(stranger.status).toBe(401)
  expect(stranger.headers.get('www-authenticate')).toMatch(/^Bearer/)
  expect(stranger.headers.get('content-type')).toMatch('application/problem+json')

  const keyless = await client.post(path, body, { key: '' })
  expect(keyless.status).toBe(400)
  expect(keyless.body).toMatchObject({ code: 'idempotency_key_missing' })
})

it('refuses another request under a used key', async () => {
  await client.post('/payments', PAYMENT, { key: keyOf('used') })
  const other = await client.post(
    '/payments',
    { ...PAYMENT, amountCents: 1 },
    { key: keyOf('used') },
  )
  expect(other.status).toBe(422)
})

const INVALID: readonly (readonly [path: string, body: unknown, fields: readonly string[]])[] = [
  ['/payments', {}, ['customerId', 'amountCents', 'currency']],
  ['/payments', { ...PAYMENT, customerId: ' ' }, ['customerId']],
  ['/payments', { ...PAYMENT, customerId: 'a\0b' }, ['customerId']],
  ['/payments', { ...PAYMENT, customerId: '\ud800' }, ['customerId']],
  ['/payments', { ...PAYMENT, amountCents: 0, currency: 'usd' }, ['amountCents', 'currency']],
  ['/payments', { ...PAYMENT, amountCents: 1.5 }, ['amountCents']],
  ['/payments', { ...PAYMENT, amountCents: '1' }, ['amountCents']],
  ['/payments', [], ['body']],
  ['/payments/00000000-0000-8000-8000-000000000000/refunds', {}, ['amountCents']],
  ['/orders', {}, ['customerId', 'sku', 'quantity']],
  ['/transfers', {}, ['toAccount', 'amountCents', 'currency']],
]

it('lists all errors of a request, and leaves its key free', async () => {
  for (const [path, body, fields] of INVALID) {
    const reply = await client.post(path, body, { key: keyOf('corrected') })
    expect(reply.status).toBe(400)
    expect(reply.headers.get('content-type')).toMatch('application/problem+json')
    expect(reply.body['code']).toBe('invalid_request')
    const errors = reply.body['errors'] as { field: string }[]
    expect(errors.map(({ field }) => field)).toEqual(fields)
  }
  const corrected = await client.post('/payments', PAYMENT, { key: keyOf('corrected') })
  expect(corrected.status).toBe(201)
})

it('reports a body that is not JSON or too long', async () => {
  const broken = await client.post('/payments', '{ "customerId": ', { key: keyOf('broken') })
  expect(broken.status).toBe(400)
  expect(broken.headers.get('content-type')).toMatch('application/problem+json')
  expect(broken.body).toMatchObject({ code: 'unreadable_request' })

  const long = { ...PAYMENT, note: 'x'.repeat(20_000) }
  expect((await client.post('/payments', long, { key: keyOf('long') })).status).toBe(413)
})

it('reports that it is alive and ready without authentication', async () => {
  const { origin } = new URL(curl.url)
  const [alive, ready] = await Promise.all([fetch(`${origin}/healthz`), fetch(`${origin}/readyz`)])
  expect([alive.status, await alive.json()]).toEqual([200, { status: 'ok' }])
  expect([ready.status, await ready.json()]).toEqual([200, { status: 'ready' }])
})

it('replays a payment after a kill and a restart', async () => {
  const { post, signal, ended, dataFolder } = await setup()
  const first = await post('/payments', PAYMENT, { key: keyOf('k') })
  signal('SIGKILL')
  await ended
  const again = await setup(dataFolder)
  const second = await again.post('/payments', PAYMENT, { key: keyOf('k') })

  expect(isReplay(second)).toBe(true)
  expect(second.text).toBe(first.text)
  expect((await again.get(`/payments/${String(second.body['paymentId'])}`)).status).toBe(200)
})

it.each(['SIGTERM', 'SIGINT'] as const)('finishes requests in progress on %s', async (name) => {
  const { curl, signal, ended, dataFolder } = await setup()
  const under = request(curl.url, {
    method: 'POST',
    // The server's "100 Continue" proves that it has the request and waits for the body.
    headers: { ...curl.headers, Expect: '100-continue', 'Content-Length': curl.body.length },
  })
  under.flushHeaders()
  await once(under, 'continue')
  signal(name)
  await untilRefused(new URL(curl.url).origin)
  const reply = await finish(under, curl.body)

  expect(reply.statusCode).toBe(201)
  expect(await text(reply)).toContain('"status":"succeeded"')
  expect(await ended).toEqual({ code: 0, errors: '' })
  const again = await setup(dataFolder)
  const replay = await fetch(again.curl.url, { ...curl, method: 'POST' })
  expect(replay.headers.get('idempotent-replayed')).toBe('true')
})

it('exits with one sentence when its port is in use', async () => {
  const { port } = new URL(curl.url)
  const { ended } = startService({ folder, dataFolder: newDataFolder(), port })
  const { code, errors } = await ended
  expect(code).toBe(1)
  expect(errors).toBe(`Port ${port} is in use; set PORT to another one, or to 0 for any.\n`)
})

it('exits with one sentence about an invalid setting', async () => {
  const options = { folder, dataFolder: newDataFolder(), port: 'http' }
  const { code, errors } = await startService(options).ended
  expect(code).toBe(1)
  expect(errors).toBe('PORT must be a number from 0 to 65535, got "http".\n')
})

async function finish(under: ClientRequest, body: string): Promise<IncomingMessage> {
  under.end(body)
  const [reply] = await once(under, 'response')
  return reply as IncomingMessage
}

const CONNECTS_MAX = 10_000

/** Connects until the service no longer listens: then it has handled the signal. */
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
  throw new Error('the service did not stop listening')
}
