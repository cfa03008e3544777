import { once } from 'node:events'
import { createServer } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { openDatabase } from '../../../examples/provider/database.ts'
import { BODY_BYTES_MAX } from '../../../examples/provider/request-input.ts'
import { CHARGE, dataFolder, startProvider } from './scene.ts'

const HOUR_MS = 3_600_000

it('makes an effect, and finds it by id and by key', async () => {
  const { post, get } = await startProvider()
  const first = await post('/charges', 'k-1')
  expect(first.status).toBe(201)
  expect(first.headers.get('idempotent-replayed')).toBeNull()
  expect(first.body).toEqual({
    ...CHARGE,
    id: expect.stringMatching(/^ch_[0-9a-f]{32}$/),
    kind: 'charge',
    status: 'succeeded',
    key: 'k-1',
    sequence: 1,
    createdAt: expect.stringMatching(/^\d{4}-.*Z$/),
  })
  expect((await get(`/effects/${first.body.id}`)).body).toEqual(first.body)
  expect((await get('/effects?key=k-1')).body).toEqual(first.body)
  expect((await get('/effects?key=k-2')).status).toBe(404)
  expect((await get('/effects/ch_0')).body.error.code).toBe('not_found')
  expect((await get('/effects')).status).toBe(400)
})

it('gives the same answer for the same key and request, and refuses another request', async () => {
  const { post, get } = await startProvider()
  const first = await post('/charges', 'k-1')
  const again = await post('/charges', 'k-1', { ...CHARGE })
  expect(again.status).toBe(201)
  expect(again.headers.get('idempotent-replayed')).toBe('true')
  expect(again.body).toEqual(first.body)

  const others = [
    await post('/charges', 'k-1', { ...CHARGE, amountCents: 1 }),
    await post('/charges', 'k-1', { ...CHARGE, account: 'cus_2' }),
    await post('/charges', 'k-1', { ...CHARGE, reference: 'pay-8' }),
    await post('/holds', 'k-1'),
  ]
  expect(others.map(({ status, body }) => [status, body.error.code])).toEqual(
    others.map(() => [422, 'key_reused']),
  )
  expect((await get('/ledger')).body.effects).toHaveLength(1)
})

it('replays a decline with its reason', async () => {
  const { post } = await startProvider()
  const declined = { ...CHARGE, account: 'declined' }
  const first = await post('/payouts', 'k-1', declined)
  expect(first).toMatchObject({
    status: 201,
    body: { status: 'declined', declineCode: 'account_declined' },
  })
  expect((await post('/payouts', 'k-1', declined)).body).toEqual(first.body)
})

it('drops a key after its retention, makes a second effect, and shows both', async () => {
  let nowMs = Date.parse('2026-01-01T00:00:00Z')
  const { post, get } = await startProvider({ keyRetentionMs: HOUR_MS, now: () => nowMs })
  const first = await post('/charges', 'k-1')
  nowMs += HOUR_MS - 1
  expect((await post('/charges', 'k-1')).body.id).toBe(first.body.id)
  nowMs += 1
  const second = await post('/charges', 'k-1')
  expect(second.headers.get('idempotent-replayed')).toBeNull()
  expect(second.body.id).not.toBe(first.body.id)
  // The retention of the second effect starts now: a third request gets it.
  nowMs += HOUR_MS - 1
  expect((await post('/charges', 'k-1')).body.id).toBe(second.body.id)

  expect((await get('/effects?key=k-1')).body.id).toBe(first.body.id)
  const { effects } = (await get('/ledger?key=k-1')).body
  expect(effects.map(({ id }: { id: string }) => id)).toEqual([first.body.id, second.body.id])
})

it('never refunds more than was charged', async () => {
  const { post } = await startProvider()
  const { id: of } = (await post('/charges', 'c')).body
  const refund = async (key: string, change: object) => {
    const { body } = await post('/refunds', key, { ...CHARGE, of, ...change })
    return body.declineCode ?? body.status
  }
  expect(await refund('r-1', { amountCents: 1000 })).toBe('succeeded')
  expect(await refund('r-2', { amountCents: 251 })).toBe('exceeds_charge')
  expect(await refund('r-3', { amountCents: 1, currency: 'KRW' })).toBe('charge_not_found')
  expect(await refund('r-4', { amountCents: 250 })).toBe('succeeded')
  expect(await refund('r-5', { amountCents: 1 })).toBe('exceeds_charge')
  expect(await refund('r-6', { amountCents: 1, of: 'ch_0' })).toBe('charge_not_found')

  const { id: hold } = (await post('/holds', 'h')).body
  expect(await refund('r-7', { amountCents: 1, of: hold })).toBe('charge_not_found')
})

it('captures a hold once, and no more than was held', async () => {
  const { post } = await startProvider()
  const { id: of } = (await post('/holds', 'h')).body
  const capture = async (key: string, change: object = {}) => {
    const { body } = await post('/captures', key, { ...CHARGE, of, ...change })
    return body.declineCode ?? body.status
  }
  expect(await capture('c-1', { amountCents: 1251 })).toBe('exceeds_hold')
  expect(await capture('c-2', { amountCents: 1000 })).toBe('succeeded')
  expect(await capture('c-3', { amountCents: 1 })).toBe('hold_taken')
  const { id: declined } = (await post('/holds', 'h-2', { ...CHARGE, account: 'declined' })).body
  expect(await capture('c-4', { of: declined })).toBe('hold_not_found')
})

it('lists the ledger in pages, by a sequence without gaps', async () => {
  const { post, get } = await startProvider()
  await Promise.all(Array.from({ length: 7 }, (_, index) => post('/charges', `k-${index}`)))
  const sequences: number[] = []
  let after: number | null = 0
  while (after !== null) {
    const { body } = await get(`/ledger?after=${after}&limit=3`)
    sequences.push(...body.effects.map(({ sequence }: { sequence: number }) => sequence))
    after = body.next
  }
  expect(sequences).toEqual([1, 2, 3, 4, 5, 6, 7])
  for (const query of ['limit=0', 'limit=1001', 'limit=x', 'after=-1', 'after=1.5']) {
    expect((await get(`/ledger?${query}`)).body.error.code).toBe('invalid_request')
  }
})

it('keeps all data after a restart, and recognises its keys', async () => {
  const folder = dataFolder()
  const before = await startProvider({ dataFolder: folder })
  const first = await before.post('/charges', 'k-1')
  await before.close()
  const after = await startProvider({ dataFolder: folder })
  const again = await after.post('/charges', 'k-1')
  expect(again.headers.get('idempotent-replayed')).toBe('true')
  expect(again.body).toEqual(first.body)
  expect((await after.post('/charges', 'k-2')).body.sequence).toBe(2)
})

const MALFORMED: [name: string, body: unknown, word: string][] = [
  ['no object', [CHARGE], 'JSON object'],
  ['null', null, 'JSON object'],
  ['a field that is unknown', { ...CHARGE, ammount: 1 }, 'ammount'],
  ['an own __proto__', JSON.parse('{"__proto__":{}}'), '__proto__'],
  ['no amount', { ...CHARGE, amountCents: undefined }, 'amountCents'],
  ['an amount of zero', { ...CHARGE, amountCents: 0 }, 'amountCents'],
  ['half a cent', { ...CHARGE, amountCents: 0.5 }, 'amountCents'],
  ['an amount as text', { ...CHARGE, amountCents: '5' }, 'amountCents'],
  ['an amount above the largest safe integer', { ...CHARGE, amountCents: 2 ** 53 }, 'amountCents'],
  ['a currency in small letters', { ...CHARGE, currency: 'usd' }, 'currency'],
  ['an empty reference', { ...CHARGE, reference: '' }, 'reference'],
  ['a long reference', { ...CHARGE, reference: 'x'.repeat(201) }, 'reference'],
  ['a NUL in the account', { ...CHARGE, account: 'a\0b' }, 'account'],
  ['half a character in the account', { ...CHARGE, account: '\ud800' }, 'account'],
  ['a charge that refers to another effect', { ...CHARGE, of: 'ch_1' }, '"of"'],
]

it('commits to the disk, not to the operating system cache, before it answers', () => {
  const database = openDatabase(dataFolder())
  onTestFinished(() => database.close())
  const { durable } = database
  expect(durable.prepare('PRAGMA journal_mode').get()).toEqual({ journal_mode: 'wal' })
  // FULL. Killing a process does not show the difference, only a power cut does.
  expect(durable.prepare('PRAGMA synchronous').get()).toEqual({ synchronous: 2 })
})

it('refuses malformed requests with a reason, and leaves their keys free', async () => {
  const { post, get } = await startProvider()
  for (const [name, body, word] of MALFORMED) {
    const answer = await post('/charges', name, body)
    const message = expect.stringContaining(word)
    const error = { code: 'invalid_request', message }
    expect([name, answer.status, answer.body.error]).toEqual([name, 400, error])
    expect([name, (await post('/charges', name)).status]).toEqual([name, 201])
  }
  expect((await get('/ledger')).body.effects).toHaveLength(MALFORMED.length)
})

it('refuses a refund without a charge, and a missing, empty or too long key', async () => {
  const { url, post } = await startProvider()
  expect((await post('/refunds', 'k-1')).body.error.message).toContain('id of its charge')
  expect((await post('/captures', 'k-1')).body.error.message).toContain('id of its hold')
  expect((await post('/charges', '')).status).toBe(400)
  expect((await post('/charges', 'x'.repeat(256))).status).toBe(400)
  expect((await post('/charges', 'x'.repeat(255))).status).toBe(201)
  const keyless = await fetch(`${url}/charges`, { method: 'POST', body: JSON.stringify(CHARGE) })
  expect(keyless.status).toBe(400)
})

it('refuses a body that is not JSON in UTF-8', async () => {
  const { url } = await startProvider()
  const latin = Buffer.from(JSON.stringify({ ...CHARGE, account: '\xff' }), 'latin1')
  for (const body of ['', '{', '{"a":1,}', '['.repeat(100_000), latin]) {
    const headers = { 'Idempotency-Key': 'k-1' }
    const answer = await fetch(`${url}/charges`, { method: 'POST', headers, body })
    const message = 'The body is not JSON in UTF-8.'
    expect(await answer.json()).toEqual({ error: { code: 'invalid_request', message } })
    expect(answer.status).toBe(400)
  }
})

it('refuses a body of more than a mebibyte, with or without a length', async () => {
  const { url, post } = await startProvider()
  const large = Buffer.alloc(BODY_BYTES_MAX + 1, ' ')
  const headers = { 'Idempotency-Key': 'k-1' }
  const announced = await fetch(`${url}/charges`, { method: 'POST', headers, body: large })
  expect(announced.status).toBe(413)
  expect(await announced.json()).toMatchObject({ error: { code: 'body_too_large' } })

  const body = new ReadableStream({
    start(controller) {
      for (let start = 0; start < large.length; start += 65_536) {
        controller.enqueue(large.subarray(start, start + 65_536))
      }
      controller.close()
    },
  })
  const init: RequestInit = { method: 'POST', headers, body, duplex: 'half' }
  const streamed = await fetch(`${url}/charges`, init)
  expect(streamed.status).toBe(413)

  const full = JSON.stringify(CHARGE).padEnd(BODY_BYTES_MAX, ' ')
  const fits = await fetch(`${url}/charges`, { method: 'POST', headers, body: full })
  expect(fits.status).toBe(201)
  expect((await post('/charges', 'k-2')).status).toBe(201)
})

it('answers other paths and methods with JSON errors', async () => {
  const { url, get } = await startProvider()
  expect((await get('/nothing')).body.error.code).toBe('not_found')
  expect((await get('/constructor')).status).toBe(404)
  const wrong = await fetch(`${url}/charges`, { method: 'DELETE' })
  expect([wrong.status, wrong.headers.get('allow')]).toEqual([405, 'POST'])
  expect((await fetch(`${url}/ledger`, { method: 'POST' })).headers.get('allow')).toBe('GET')
  expect((await fetch(`${url}/faults`, { method: 'POST' })).headers.get('allow')).toBe('GET, PUT')
})

it.each([
  ['no HTTP at all', 'hello\r\n\r\n', '400'],
  [
    'a body that is announced as too large, before it comes,',
    `POST /charges HTTP/1.1\r\nHost: a\r\nContent-Length: ${BODY_BYTES_MAX + 1}\r\n\r\n`,
    '413',
  ],
  ['endless headers', `GET / HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(100_000)}\r\n\r\n`, '431'],
  [
    'a target that is no path',
    'GET http://[ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n',
    '400',
  ],
])('answers %s with a JSON error', async (_name, text, status) => {
  const { url, get } = await startProvider()
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  onTestFinished(() => void socket.destroy())
  socket.write(text)
  let answer = ''
  socket.on('data', (chunk) => (answer += chunk.toString()))
  await once(socket, 'close')
  expect(answer).toContain(`HTTP/1.1 ${status} `)
  expect(answer).toMatch(/\{"error":\{"code":"\w+","message":"[^"]+"\}\}$/)
  expect((await get('/healthz')).status).toBe(200)
})

it('does nothing for a request whose body breaks off', async () => {
  const { url, get } = await startProvider()
  const socket = connect(Number(new URL(url).port), '127.0.0.1')
  const head =
    'POST /charges HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k-1\r\nContent-Length: 500\r\n\r\n'
  await new Promise((resolve) => socket.write(`${head}{"amount`, resolve))
  socket.destroy()
  await once(socket, 'close')
  expect((await get('/ledger')).body.effects).toEqual([])
})

it('reports which port is in use, and leaves its folder free', async () => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => void server.close())
  const { port } = server.address() as AddressInfo
  const folder = dataFolder()
  await expect(startProvider({ port, dataFolder: folder })).rejects.toThrow(
    `Port ${port} is in use; set PORT to another one, or to 0 for any.`,
  )
  expect((await (await startProvider({ dataFolder: folder })).post('/charges', 'k')).status).toBe(
    201,
  )
})

it('refuses contradictory options', async () => {
  const start = (options: object) => startProvider(options)
  const webhookUrls = ['http://127.0.0.1:1/hook']
  await expect(start({ webhookUrls })).rejects.toThrow('webhookUrls need a webhookSecret')
  await expect(start({ webhookSecret: '' })).rejects.toThrow('must not be empty')
  await expect(start({ webhookUrls: ['ftp://a'], webhookSecret: 's' })).rejects.toThrow('"ftp://a"')
  await expect(start({ keyRetentionMs: -1 })).rejects.toThrow('got -1')
  await expect(start({ faults: { latencyy: 1 } })).rejects.toThrow('no fault called "latencyy"')
  const { setFaults, setWebhookUrls } = await startProvider()
  expect(() => setFaults({ refuse: 2 })).toThrow('refuse must be a number from 0 to 1, got 2.')
  expect(() => setWebhookUrls(webhookUrls)).toThrow('webhookUrls need a webhookSecret')
})
