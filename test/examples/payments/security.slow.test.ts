// Takes about 20 s.
/** Attacks on the reference service, and the settings that stop them. */
import { randomBytes, randomUUID } from 'node:crypto'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { REQUEST_SIGNATURE, signRequest } from '../../../examples/payments/http/signed-time.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { clientOf, isReplay, PAYMENT, toReply, type Reply } from './client.ts'
import { addressIn, copyPackageTo, startService } from './service.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')
let folders = 0

beforeAll(() => copyPackageTo(folder), 60_000)
afterAll(scratch.remove)

const newDataFolder = () => scratch.file(`data-${folders++}`)
const newKey = () => randomUUID()

/** Two users of one tenant, and one of another. */
const TOKENS = 'token-of-ada=acme:ada,token-of-ben=acme:ben,token-of-eve=evil:eve'

async function start(env: Record<string, string> = {}, dataFolder = newDataFolder()) {
  const service = startService({ folder, dataFolder, env: { TOKENS, ...env } })
  const printed = await service.started
  const address = addressIn(printed)
  return { ...service, ...clientOf(address, 'token-of-ada'), address, printed, dataFolder }
}

describe('the start of a process that is not a demo', () => {
  it.each([
    ['TOKENS', { TOKENS: '' }],
    ['WEBHOOK_SECRET', { WEBHOOK_SECRET: '' }],
  ])('fails without %s, with one sentence that names it', async (name, without) => {
    const real = {
      NODE_ENV: 'production',
      TOKENS,
      WEBHOOK_SECRET: 'a-secret-of-the-provider',
      PROVIDER_URL: 'http://127.0.0.1:1',
    }
    const options = { folder, dataFolder: newDataFolder(), env: { ...real, ...without } }
    const { code, errors } = await startService(options).ended
    expect(code).toBe(1)
    expect(errors).toMatch(new RegExp(`^${name} must be set with NODE_ENV=production, .+\\.\\n$`))
    for (const secret of [TOKENS, real.WEBHOOK_SECRET]) expect(errors).not.toContain(secret)
  })

  it('succeeds with real secrets, which it does not print', async () => {
    const env = {
      NODE_ENV: 'production',
      WEBHOOK_SECRET: 'a-secret-of-the-provider',
      PROVIDER_URL: 'http://127.0.0.1:1',
    }
    const { printed, post } = await start(env)
    for (const secret of ['token-of', 'demo-', env.WEBHOOK_SECRET]) {
      expect(printed).not.toContain(secret)
    }
    const demo = await post('/payments', PAYMENT, { key: newKey(), token: 'demo-a' })
    expect(demo.status).toBe(401)
  })
})

describe('keys', () => {
  it('of fewer than 16 characters or with personal data are refused', async () => {
    const { post } = await start()
    const keys = ['order-1', '123456789012345', 'ada.lovelace@example.com', '+44 20 7946 0958 pay']
    for (const key of keys) {
      const { status, body } = await post('/payments', PAYMENT, { key })
      expect([status, body['code']]).toEqual([400, 'idempotency_key_malformed'])
    }
    expect((await post('/payments', PAYMENT, { key: '1234567890123456' })).status).toBe(201)
  })

  it('of another user of the tenant are neither occupied, replayed nor looked up', async () => {
    const { post, get } = await start()
    const key = newKey()
    const [token, transfer] = ['token-of-ben', { toAccount: 'a', amountCents: 1, currency: 'USD' }]
    const ofAda = await post('/payments', PAYMENT, { key })
    const ofBen = await post('/payments', { ...PAYMENT, amountCents: 1 }, { key, token })
    expect([ofAda.status, ofBen.status, isReplay(ofBen)]).toEqual([201, 201, false])
    expect(ofBen.body['paymentId']).not.toBe(ofAda.body['paymentId'])
    expect((await post('/payments', PAYMENT, { key })).text).toBe(ofAda.text)

    const place = (await post('/transfers', transfer, { key })).headers.get('location')!
    expect((await get(place, 'token-of-eve')).status).toBe(404)
    expect((await get(place, token)).status).toBe(404)
    expect([201, 202]).toContain((await get(place)).status)
  })
})

describe('limits', () => {
  /** Sends until a request is refused, because the window of a second may end in between. */
  async function untilRefused(send: (key: string) => Promise<Reply>) {
    return vi.waitUntil(
      async () => {
        const keys = [newKey(), newKey(), newKey()]
        const replies = await Promise.all(keys.map(send))
        const at = replies.findIndex(({ status }) => status === 429)
        return at === -1 ? undefined : { refused: replies[at]!, key: keys[at]! }
      },
      { timeout: 10_000, interval: 1 },
    )
  }

  it('of new keys refuse a tenant, and neither its replays nor other tenants', async () => {
    const { post, dataFolder } = await start({ NEW_KEYS_PER_SECOND: '1' })
    const known = newKey()
    await vi.waitUntil(
      async () => (await post('/payments', PAYMENT, { key: known })).status === 201,
    )
    const { refused, key } = await untilRefused((key) => post('/payments', PAYMENT, { key }))
    expect(refused.body).toMatchObject({ code: 'idempotency_rate_limited' })
    expect(refused.headers.get('retry-after')).toBe('1')
    expect(refused.headers.get('ratelimit-policy')).toBe('"new-keys";q=1;w=1')
    expect(refused.headers.get('ratelimit')).toMatch(/^"new-keys";r=0;t=[01]$/)

    const replays = Array.from({ length: 5 }, () => post('/payments', PAYMENT, { key: known }))
    expect((await Promise.all(replays)).map(isReplay)).toEqual(replays.map(() => true))
    const other = await post('/payments', PAYMENT, { key: newKey(), token: 'token-of-eve' })
    expect(other.status).toBe(201)
    // The refused key was not used.
    const db = new DatabaseSync(`${dataFolder}/payments.db`, { readOnly: true, timeout: 5_000 })
    expect(db.prepare('SELECT key FROM oncekey_record WHERE key = ?').all(key)).toEqual([])
    db.close()
  })

  it('of look-ups refuse a user who guesses, and neither new keys nor other users', async () => {
    const { post, get } = await start({ LOOK_UPS_PER_SECOND: '1' })
    const guess = () => get(`/operations/${randomUUID()}`)
    const { refused } = await untilRefused(guess)
    expect(refused.body).toMatchObject({ code: 'idempotency_rate_limited' })
    expect(refused.headers.get('ratelimit-policy')).toBe('"look-ups";q=1;w=1')
    const key = newKey()
    expect((await post('/payments', PAYMENT, { key })).status).toBe(201)
    await untilRefused(() => post('/payments', PAYMENT, { key }))
    const token = 'token-of-ben'
    expect((await post('/payments', PAYMENT, { key: newKey(), token })).status).toBe(201)
    expect((await get(`/operations/${randomUUID()}`, token)).status).toBe(404)
  })

  it('of requests in flight count all routes of a tenant together', async () => {
    const { post } = await start({ IN_FLIGHT_MAX: '1', FAULTS: 'latency=1,latencyMaxMs=500' })
    const order = { customerId: 'c', sku: 'tea', quantity: 1 }
    const refused = await vi.waitUntil(
      async () => {
        const replies = await Promise.all([
          post('/payments', PAYMENT, { key: newKey() }),
          post('/orders', order, { key: newKey() }),
        ])
        return replies.find(({ status }) => status === 429)
      },
      { timeout: 10_000 },
    )
    expect(refused.headers.get('ratelimit-policy')).toBe('"in-flight";q=1;qu="concurrent-requests"')
  })
})

describe('a captured request', () => {
  const HOUR_MS = 3_600_000
  const SECRET = 'the-signing-secret-of-ada'
  const env = {
    TOKENS: 'token-of-ada=acme:ada',
    SIGNING_SECRETS: `token-of-ada=${SECRET}`,
    MAX_REQUEST_AGE_MS: `${HOUR_MS}`,
  }

  /** A request that was first sent at this time, as its client signs it. */
  function signed(address: string, firstSentMs = Date.now(), key = newKey()) {
    const body = JSON.stringify(PAYMENT)
    const request = { method: 'POST', path: '/payments', key, body }
    const headers = {
      Authorization: 'Bearer token-of-ada',
      'Content-Type': 'application/json',
      'Idempotency-Key': key,
      [REQUEST_SIGNATURE]: signRequest(request, SECRET, new Date(firstSentMs)),
    }
    const send = async (changed: Record<string, string> = {}, sent = body) => {
      const init = { method: 'POST', headers: { ...headers, ...changed }, body: sent }
      return toReply(await fetch(`${address}/payments`, init))
    }
    return { send, headers, key }
  }

  it('runs in time, and is refused with 412 when it is old or lies in the future', async () => {
    const { address } = await start(env)
    expect((await signed(address).send()).status).toBe(201)
    for (const firstSentMs of [Date.now() - HOUR_MS - 5_000, Date.now() + HOUR_MS]) {
      const { status, body } = await signed(address, firstSentMs).send()
      expect([status, body['code']]).toEqual([412, 'idempotency_request_too_old'])
    }
  })

  it('is refused with 401 when its time, key, body or path was exchanged or left out', async () => {
    const { address, post } = await start(env)
    const { send, headers } = signed(address, Date.now() - 2 * HOUR_MS)
    const now = `t=${Math.floor(Date.now() / 1000)}`
    const attacks = [
      await send({ [REQUEST_SIGNATURE]: headers[REQUEST_SIGNATURE].replace(/^t=\d+/, now) }),
      await send({ 'Idempotency-Key': newKey() }),
      await send({}, JSON.stringify({ ...PAYMENT, amountCents: 1 })),
      await send({ [REQUEST_SIGNATURE]: 'yesterday' }),
      await post('/payments', PAYMENT, { key: newKey() }),
      await toReply(
        await fetch(`${address}/orders`, {
          method: 'POST',
          headers,
          body: JSON.stringify(PAYMENT),
        }),
      ),
    ]
    for (const { status, body } of attacks) {
      expect([status, body['code']]).toEqual([401, 'invalid_signature'])
    }
  })

  it('is replayed to a client that retries late, because its reply is on record', async () => {
    const dataFolder = newDataFolder()
    const first = await start(env, dataFolder)
    const { send, key } = signed(first.address)
    const paid = await send()
    expect(paid.status).toBe(201)
    first.signal('SIGTERM')
    await first.ended
    // An age of a millisecond: now the same request is too old to run.
    const strict = await start({ ...env, MAX_REQUEST_AGE_MS: '1' }, dataFolder)
    const late = await signed(strict.address, Date.now() - 60_000, key).send()
    expect([late.status, isReplay(late), late.text]).toEqual([201, true, paid.text])
    expect((await signed(strict.address, Date.now() - 60_000).send()).status).toBe(412)
  })
})

describe('encryption', () => {
  const [old, current] = [randomBytes(32), randomBytes(32)].map((key) => key.toString('base64'))
  const MARKED = { ...PAYMENT, customerId: 'cus_marker_7391' }
  const TRANSFER = { toAccount: 'acc_marker_7391', amountCents: 1, currency: 'USD' }

  /** Whether the tables of oncekey have the text. The service's own tables are plain. */
  function isRecorded(dataFolder: string, text: string): boolean {
    const db = new DatabaseSync(`${dataFolder}/payments.db`, { readOnly: true, timeout: 5_000 })
    const tables = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").all()
    const values = tables
      .map(({ name }) => String(name))
      .filter((name) => name.startsWith('oncekey_'))
      .flatMap((name) => db.prepare(`SELECT * FROM "${name}"`).all())
      .flatMap((row) => Object.values(row))
    db.close()
    return values.some((value) =>
      value instanceof Uint8Array
        ? Buffer.from(value).includes(text)
        : String(value).includes(text),
    )
  }

  it('hides replies, inputs and requests, and reads them after a rotation', async () => {
    const dataFolder = newDataFolder()
    const required = { ENCRYPTION_REQUIRED: '1' }
    const first = await start({ ENCRYPTION_KEYS: `2026-10:${old}`, ...required }, dataFolder)
    const key = newKey()
    const paid = await first.post('/payments', MARKED, { key })
    expect(paid.status).toBe(201)
    await first.post('/transfers', TRANSFER, { key: newKey() })
    for (const text of ['cus_marker_7391', 'acc_marker_7391']) {
      expect(isRecorded(dataFolder, text)).toBe(false)
    }
    first.signal('SIGTERM')
    await first.ended

    const keys = `2026-10:${old},2026-11:${current}`
    const env = { ENCRYPTION_KEYS: keys, ENCRYPTION_CURRENT: '2026-11', ...required }
    const second = await start(env, dataFolder)
    const replay = await second.post('/payments', MARKED, { key })
    expect([replay.status, isReplay(replay), replay.text]).toEqual([201, true, paid.text])
    const next = await second.post('/payments', MARKED, { key: newKey() })
    expect([next.status, isRecorded(dataFolder, '2026-11')]).toEqual([201, true])
    expect(isRecorded(dataFolder, 'cus_marker_7391')).toBe(false)
  })

  it('reads plain replies of earlier requests, until encryption is required', async () => {
    const dataFolder = newDataFolder()
    const plain = await start({}, dataFolder)
    const key = newKey()
    const paid = await plain.post('/payments', PAYMENT, { key })
    plain.signal('SIGTERM')
    await plain.ended

    const keys = { ENCRYPTION_KEYS: `2026-10:${old}` }
    const during = await start(keys, dataFolder)
    const replay = await during.post('/payments', PAYMENT, { key })
    expect([isReplay(replay), replay.text]).toEqual([true, paid.text])
    during.signal('SIGTERM')
    await during.ended

    const after = await start({ ...keys, ENCRYPTION_REQUIRED: '1' }, dataFolder)
    const refused = await after.post('/payments', PAYMENT, { key })
    expect([refused.status, refused.body['code']]).toEqual([409, 'idempotency_reply_unreadable'])
    expect((await after.post('/payments', PAYMENT, { key: newKey() })).status).toBe(201)
  })

  it('hashes the keys of clients, and knows them after a change of the secret', async () => {
    const dataFolder = newDataFolder()
    const first = await start({ KEY_HASH_SECRETS: old! }, dataFolder)
    const key = newKey()
    const paid = await first.post('/payments', PAYMENT, { key })
    const accepted = await first.post('/transfers', TRANSFER, { key })
    expect([paid.status, accepted.status]).toEqual([201, 202])
    expect(isRecorded(dataFolder, key)).toBe(false)
    first.signal('SIGTERM')
    await first.ended

    const second = await start({ KEY_HASH_SECRETS: `${current},${old}` }, dataFolder)
    const replay = await second.post('/payments', PAYMENT, { key })
    expect([replay.status, isReplay(replay), replay.text]).toEqual([201, true, paid.text])
    const place = accepted.headers.get('location')!
    expect([201, 202]).toContain((await second.get(place)).status)
    expect((await second.get(place, 'token-of-ben')).status).toBe(404)
  })

  it('without keys leaves records readable, so the search above can find a text', async () => {
    const { post, dataFolder } = await start()
    const key = newKey()
    await post('/payments', MARKED, { key })
    for (const text of ['cus_marker_7391', key]) expect(isRecorded(dataFolder, text)).toBe(true)
  })
})
