import { expect, it, onTestFinished, vi } from 'vitest'
import type { Faults, ProviderEffect } from '../../../examples/provider/contract.ts'
import { openDatabase } from '../../../examples/provider/database.ts'
import { FAULT_NAMES, parseFaults } from '../../../examples/provider/faults.ts'
import { createLateEffects } from '../../../examples/provider/late-effects.ts'
import { createLedger } from '../../../examples/provider/ledger.ts'
import { CHARGE, dataFolder, SECRET, startProvider, startReceiver, type Client } from './scene.ts'

const HOUR_MS = 3_600_000
const PATIENCE = { timeout: 20_000 }

it('latency: the effect is delayed, and done', async () => {
  const { post, get } = await startProvider({ faults: { latency: 1, latencyMaxMs: 20 } })
  expect((await post('/charges', 'k-1')).status).toBe(201)
  expect((await post('/charges', 'k-1')).headers.get('idempotent-replayed')).toBe('true')
  expect((await get('/faults')).body.counts).toMatchObject({ latency: 2, refuse: 0 })
})

it('latency: the key is in progress meantime, and a shutdown waits for the answer', async () => {
  const folder = dataFolder()
  const faults = { latency: 1, latencyMaxMs: HOUR_MS }
  const { post, get, close } = await startProvider({ dataFolder: folder, faults })
  const both = [post('/charges', 'k-1'), post('/charges', 'k-1')]
  const refused = await Promise.race(both)
  expect([refused.status, refused.body.error.code]).toEqual([409, 'in_progress'])
  expect(refused.headers.get('retry-after')).toBe('1')
  const other = await post('/charges', 'k-1', { ...CHARGE, amountCents: 1 })
  expect([other.status, other.body.error.code]).toEqual([422, 'key_reused'])
  expect((await get('/effects?key=k-1')).status).toBe(404)
  await close()
  const statuses = (await Promise.all(both)).map(({ status }) => status)
  expect(new Set(statuses)).toEqual(new Set([201, 409]))

  const after = await startProvider({ dataFolder: folder })
  expect((await after.post('/charges', 'k-1')).headers.get('idempotent-replayed')).toBe('true')
  expect((await after.get('/ledger')).body.effects).toHaveLength(1)
})

it('latency: a client that disconnects changes nothing', async () => {
  const folder = dataFolder()
  const { url, post, close } = await startProvider({
    dataFolder: folder,
    faults: { latency: 1, latencyMaxMs: HOUR_MS },
  })
  const leave = new AbortController()
  const headers = { 'Idempotency-Key': 'k-1' }
  const body = JSON.stringify(CHARGE)
  const init = { method: 'POST', headers, body, signal: leave.signal }
  const left = fetch(`${url}/charges`, init).catch(() => 'left')
  await vi.waitFor(async () => {
    const { status } = await post('/charges', 'k-1', { ...CHARGE, amountCents: 1 })
    expect(status).toBe(422)
  }, PATIENCE)
  leave.abort()
  expect(await left).toBe('left')
  await close()
  const { get } = await startProvider({ dataFolder: folder })
  expect((await get('/effects?key=k-1')).status).toBe(200)
})

it('refuse: answers 503 without an effect, even when an earlier request was made', async () => {
  const { post, get, setFaults } = await startProvider({ faults: { refuse: 1 } })
  const refused = await post('/charges', 'k-1')
  expect([refused.status, refused.body.error.code]).toEqual([503, 'refused'])
  expect((await get('/effects?key=k-1')).status).toBe(404)
  setFaults({})
  expect((await post('/charges', 'k-1')).headers.get('idempotent-replayed')).toBeNull()
  setFaults({ refuse: 1 })
  expect((await post('/charges', 'k-1')).status).toBe(503)
  expect((await get('/effects?key=k-1')).status).toBe(200)
})

it('dropRequest: cuts the connection without an effect', async () => {
  const { post, get } = await startProvider({ faults: { dropRequest: 1 } })
  expect((await post('/charges', 'k-1')).status).toBe(0)
  expect((await get('/ledger')).body.effects).toEqual([])
})

it('refuseQuery: answers 503 to queries for effects only', async () => {
  const { post, get } = await startProvider({ faults: { refuseQuery: 1 } })
  const { status, body } = await post('/charges', 'k-1')
  expect(status).toBe(201)
  expect((await get('/effects?key=k-1')).status).toBe(503)
  expect((await get(`/effects/${body.id}`)).status).toBe(503)
  expect((await get('/ledger')).body.effects).toHaveLength(1)
})

it.each([
  ['effectThenDrop', 0],
  ['effectThen500', 500],
] as const)('%s: the effect is done, and the client gets no success', async (name, status) => {
  const { post, get, setFaults } = await startProvider({ faults: { [name]: 1 } })
  expect((await post('/charges', 'k-1')).status).toBe(status)
  // A retry gets no success either.
  expect((await post('/charges', 'k-1')).status).toBe(status)
  const { body: found } = await get('/effects?key=k-1')
  setFaults({})
  const again = await post('/charges', 'k-1')
  expect(again.headers.get('idempotent-replayed')).toBe('true')
  expect(again.body).toEqual(found)
  expect((await get('/ledger')).body.effects).toHaveLength(1)
  expect((await get('/faults')).body).toEqual({ counts: expect.objectContaining({ [name]: 2 }) })
})

it('lateSuccess: answers 500 at once, and makes the effect later', async () => {
  const receiver = await startReceiver()
  const { post, get, setFaults } = await startProvider({
    faults: { lateSuccess: 1, lateMaxMs: 20 },
    webhookUrls: [receiver.url],
    webhookSecret: SECRET,
  })
  const first = await post('/charges', 'k-1')
  expect([first.status, first.body.error.code]).toEqual([500, 'internal_error'])
  setFaults({})
  await receiver.until((all) => all.some(({ event }) => event.type === 'effect.succeeded'))
  const again = await post('/charges', 'k-1')
  expect(again.headers.get('idempotent-replayed')).toBe('true')
  expect(again.body).toEqual(receiver.received[0]!.event.effect)
  expect((await get('/ledger')).body.effects).toHaveLength(1)
})

it('lateSuccess: the key is in progress until then, even after a restart', async () => {
  const folder = dataFolder()
  const faults = { lateSuccess: 1, lateMaxMs: HOUR_MS }
  const before = await startProvider({ dataFolder: folder, faults })
  expect((await before.post('/charges', 'k-1')).status).toBe(500)
  const expectInProgress = async ({ post, get }: Client) => {
    expect((await get('/effects?key=k-1')).status).toBe(404)
    expect((await post('/charges', 'k-1')).status).toBe(409)
    const other = await post('/charges', 'k-1', { ...CHARGE, amountCents: 1 })
    expect([other.status, other.body.error.code]).toEqual([422, 'key_reused'])
  }
  await expectInProgress(before)
  await before.close()
  const between = await startProvider({ dataFolder: folder })
  await expectInProgress(between)
  await between.close()

  const after = await startProvider({ dataFolder: folder, now: () => Date.now() + HOUR_MS })
  expect((await after.get('/effects?key=k-1')).body).toMatchObject({ sequence: 1, key: 'k-1' })
  expect((await after.post('/charges', 'k-1')).status).toBe(201)
  expect((await after.get('/ledger')).body.effects).toHaveLength(1)
})

it('lateSuccess: an overdue effect is made before the start completes', () => {
  const database = openDatabase(dataFolder())
  onTestFinished(() => database.close())
  const announced: string[] = []
  const announce = ({ key }: ProviderEffect) => void announced.push(key)
  const ledger = createLedger({ database, keyRetentionMs: 0, now: () => 1_000, announce })
  ledger.postpone({ kind: 'charge', key: 'due', ...CHARGE }, 0)
  ledger.postpone({ kind: 'charge', key: 'not yet', ...CHARGE }, 1)
  const ignore = () => undefined
  const late = createLateEffects({ ledger, now: () => 1_000, onEffect: ignore, onError: ignore })
  late.restore()
  late.close()
  expect(announced).toEqual(['due'])
  expect(ledger.listLate()).toEqual([{ key: 'not yet', dueMs: 1_001 }])
})

it('lateSuccess: a refund is decided when it is made, not when it was requested', async () => {
  const folder = dataFolder()
  const { post, setFaults, close } = await startProvider({ dataFolder: folder })
  const { id: of } = (await post('/charges', 'c')).body
  setFaults({ lateSuccess: 1, lateMaxMs: HOUR_MS })
  expect((await post('/refunds', 'r-1', { ...CHARGE, of })).status).toBe(500)
  setFaults({})
  expect((await post('/refunds', 'r-2', { ...CHARGE, of })).body.status).toBe('succeeded')
  await close()
  const { get } = await startProvider({ dataFolder: folder, now: () => Date.now() + HOUR_MS })
  const { body } = await get('/effects?key=r-1')
  expect(body).toMatchObject({ sequence: 3, declineCode: 'exceeds_charge' })
})

it('the provider makes the same choices for the same seed', async () => {
  const faults: Faults = {
    ...{ refuse: 0.2, dropRequest: 0.2, lateSuccess: 0.2, lateMaxMs: HOUR_MS },
    ...{ effectThenDrop: 0.2, effectThen500: 0.2 },
  }
  const play = async (seed: number) => {
    const { post, get } = await startProvider({ seed, faults })
    const statuses: number[] = []
    for (let index = 0; index < 25; index++) {
      statuses.push((await post('/charges', `k-${index}`)).status)
    }
    return { statuses, counts: (await get('/faults')).body.counts }
  }
  const first = await play(7)
  expect(await play(7)).toEqual(first)
  expect((await play(8)).statuses).not.toEqual(first.statuses)
  expect(new Set(first.statuses)).toEqual(new Set([0, 201, 500, 503]))
})

it('a more frequent fault changes no other fault', async () => {
  const play = async (faults: Faults) => {
    const { post } = await startProvider({ seed: 3, faults })
    const statuses: number[] = []
    for (let index = 0; index < 25; index++) {
      statuses.push((await post('/charges', `k-${index}`)).status)
    }
    return statuses
  }
  const alone = await play({ effectThen500: 0.5 })
  const withDrops = await play({ effectThen500: 0.5, dropRequest: 0.3 })
  expect(withDrops).toContain(0)
  expect(withDrops.map((status, index) => (status === 0 ? alone[index] : status))).toEqual(alone)
})

it('faults can be set over HTTP', async () => {
  const { url, post, get } = await startProvider()
  const put = (body: unknown) =>
    fetch(`${url}/faults`, { method: 'PUT', body: JSON.stringify(body) })
  expect(await (await put({ refuse: 1 })).json()).toMatchObject({ refuse: 1 })
  expect((await post('/charges', 'k-1')).status).toBe(503)
  const refused = await put({ refuse: 0, latancy: 1 })
  expect(refused.status).toBe(400)
  expect(await refused.json()).toMatchObject({
    error: { message: expect.stringContaining('latancy') },
  })
  expect((await get('/faults')).body).toMatchObject({ refuse: 1 })
  await put({})
  expect((await post('/charges', 'k-1')).status).toBe(201)
})

it('faults are parsed from a line of text', () => {
  const line = FAULT_NAMES.map((name) => `${name}=0.5`).join(',')
  const faults = Object.fromEntries(FAULT_NAMES.map((name) => [name, 0.5]))
  expect(parseFaults(line)).toEqual({ kind: 'valid', faults })
  expect(parseFaults(' latency = 1 , lateMaxMs=5000,')).toEqual({
    kind: 'valid',
    faults: { latency: 1, lateMaxMs: 5000 },
  })
  expect(parseFaults('')).toEqual({ kind: 'valid', faults: {} })
})

it.each([
  ['latancy=0.1', 'There is no fault called "latancy". There are: latency, refuse, '],
  ['__proto__=1', 'There is no fault called "__proto__".'],
  ['latency', '"latency" is not of the form name=number.'],
  ['latency=often', '"latency=often" is not of the form name=number.'],
  ['latency=-1', '"latency=-1" is not of the form name=number.'],
  ['latency=1.5', 'latency must be a number from 0 to 1, got 1.5.'],
  ['latency=0.1,latency=0.2', 'latency is given twice.'],
  ['lateMaxMs=86400001', 'lateMaxMs must be a number from 0 to 86400000, got 86400001.'],
])('refuses the faults %s', (line, message) => {
  expect(parseFaults(line)).toEqual({ kind: 'invalid', message: expect.stringContaining(message) })
})
