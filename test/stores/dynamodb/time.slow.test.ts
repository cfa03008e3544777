import { createServer, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, it, onTestFinished, vi } from 'vitest'
import { ServiceTime, timeOf } from '../../../src/stores/dynamodb/driver/service-time.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  claim,
  completeOf,
  finish,
  hold,
  ofKind,
  releaseOf,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { around, useDynamodb } from './setup.ts'

const setup = useDynamodb()

const HOUR_MS = 3_600_000
const SLACK_MS = 60_000

/** Shifts the wall clock of this process. */
function setClockOff(offMs: number) {
  const right = Date.now
  return vi.spyOn(Date, 'now').mockImplementation(() => right.call(Date) + offMs)
}

it('replays until the expiry by the clock of the service on a machine an hour ahead', async () => {
  const { open, connect } = await setup()
  const expiresAtMs = Date.now() + HOUR_MS / 2
  await finish(open(), { retentionMs: HOUR_MS / 2 })
  const clock = setClockOff(HOUR_MS)
  try {
    const ahead = open({ client: connect() })
    expect(Date.now()).toBeGreaterThan(expiresAtMs)
    ofKind(await claim(ahead), 'completed')
    expect(await ahead.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
    ofKind(await claim(ahead), 'completed')
    expect(Math.abs((await ahead.now!()).getTime() + HOUR_MS - Date.now())).toBeLessThan(SLACK_MS)
  } finally {
    clock.mockRestore()
  }
})

it.each([HOUR_MS, -HOUR_MS])(
  'publishes the same expiry from a machine whose clock is off by %i ms',
  async (offMs) => {
    const { open, connect } = await setup()
    const rightMs = Date.now()
    const clock = setClockOff(offMs)
    let expiresAt: Date
    try {
      const store = open({ client: connect() })
      await finish(store, { retentionMs: HOUR_MS / 2 })
      expiresAt = ofKind(await claim(store), 'completed').expiresAt
    } finally {
      clock.mockRestore()
    }
    expect(Math.abs(expiresAt.getTime() - rightMs - HOUR_MS / 2)).toBeLessThan(SLACK_MS)
    ofKind(await claim(open()), 'completed')
  },
)

it('reads the time of the service again when the clocks of the machine disagree', async () => {
  const { open, client } = await setup()
  const calls: string[] = []
  const store = open({
    client: around(client, ({ name, go }) => {
      calls.push(name)
      return go()
    }),
  })
  await hold(store, { key: 'first' })
  await hold(store, { key: 'second' })
  // The first answer has the time. After it, a free key takes one call.
  expect(calls).toEqual(['getItem', 'putItem', 'putItem'])
  const clock = setClockOff(HOUR_MS)
  try {
    await hold(store, { key: 'third' })
    expect(calls.slice(3)).toEqual(['getItem', 'putItem'])
  } finally {
    clock.mockRestore()
  }
})

it('fails closed when the answers of the service have no date', async () => {
  const { open, client, items } = await setup()
  const mute = new Proxy(client, {
    get(target, name) {
      if (name === 'middlewareStack') return { add: () => undefined }
      const value: unknown = Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  const store = open({ client: mute })
  await expect(claim(store)).rejects.toThrow('carry no Date header')
  await expect(store.reap({ limit: 10 })).rejects.toThrow('carry no Date header')
  expect(await items()).toEqual([])
  // A list needs no time.
  expect(await store.list({ state: 'completed', limit: 10 })).toEqual([])
})

// A proxy with another clock answers in place of the service.
it('takes the time only from answers of the service', async () => {
  const { server, connect, open } = await setup()
  const { hostname, port } = new URL(server.endpoint)
  let isBroken = true
  const proxy = createServer((incoming, answer) => {
    if (isBroken) {
      answer.writeHead(502, { date: new Date(Date.now() + 48 * HOUR_MS).toUTCString() })
      return void answer.end('<h1>Bad gateway</h1>')
    }
    const { method, headers } = incoming
    const onward = request({ hostname, port, method, path: incoming.url, headers }, (reply) => {
      answer.writeHead(reply.statusCode!, reply.headers)
      reply.pipe(answer)
    })
    incoming.pipe(onward)
  })
  await new Promise<void>((resolve) => void proxy.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => proxy.closeAllConnections())
  onTestFinished(() => void proxy.close())
  const endpoint = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
  const client = connect({ endpoint, maxAttempts: 1 })
  const store = open({ client })
  const time = timeOf(client, undefined)
  await finish(open(), { retentionMs: HOUR_MS })
  await expect(claim(store)).rejects.toMatchObject({ failure: 'unavailable' })
  expect(time.isKnown()).toBe(false)
  isBroken = false
  ofKind(await claim(store), 'completed')
  isBroken = true
  await expect(claim(store)).rejects.toMatchObject({ failure: 'unavailable' })
  expect(Math.abs(time.nowMs() - Date.now())).toBeLessThan(SLACK_MS)
})

// The caller adds the time since its question, so an extrapolated answer would be too old.
it('reads the time from the service at every call of now', async () => {
  const { open, client } = await setup()
  const calls: string[] = []
  const store = open({
    client: around(client, ({ name, go }) => {
      calls.push(name)
      return go()
    }),
  })
  for (let n = 0; n < 3; n++) await store.now!()
  expect(calls).toEqual(['getItem', 'getItem', 'getItem'])
})

it('sets a TTL of a day after the expiry only on records that may disappear', async () => {
  const { open, items } = await setup()
  const store = open()
  const nowS = Date.now() / 1000
  const retentionMs = HOUR_MS
  await finish(store, { key: 'completed', retentionMs })
  await settle(store, releaseOf(await hold(store, { key: 'released', retentionMs })))
  await hold(store, { key: 'held' })
  await claim(store, { key: 'accepted', mode: 'accept' })
  await finish(store, { key: 'refused', afterExpiry: 'refuse' })
  const doubtful = await hold(store, { key: 'doubtful' })
  await settle(store, { ...releaseOf(doubtful), kind: 'doubt', reconcileAfterMs: 0 })
  await finish(open({ history: true }), { key: 'audited' })
  const found = await items()
  expect(found.length).toBe(7)
  const removed = found.filter(({ ttl }) => ttl !== undefined)
  expect(removed.map(({ key }) => String(key)).toSorted()).toEqual(['completed', 'released'])
  for (const { ttl } of removed) {
    expect(Math.abs(Number(ttl) - nowS - 25 * 3600)).toBeLessThan(SLACK_MS / 1000)
  }
  // A key that is claimed again has no TTL any more.
  await settle(store, completeOf(await hold(store, { key: 'released', retentionMs })))
  await hold(store, { key: 'again' }).then((lease) => settle(store, releaseOf(lease)))
  const again = await hold(store, { key: 'again' })
  expect((await items()).find(({ key }) => key === 'again')?.['ttl']).toBeUndefined()
  expect((await viewOf(store, again)).state).toBe('in_progress')
})

it('sets no TTL when a test passes a clock', async () => {
  const { open, items } = await setup()
  await finish(open({ clock: new FakeClock() }))
  expect((await items()).map(({ ttl }) => ttl)).toEqual([undefined])
})

it('computes a time never ahead of the service and at most a second and a trip behind', () => {
  // The service's time is independent of the machine's clock.
  const clock = new FakeClock(0)
  const time = new ServiceTime(clock)
  const startMs = Date.UTC(2026, 5, 1, 12, 0, 0, 350)
  const serviceMs = () => startMs + clock.monotonicMs()
  const ask = (thereMs: number, backMs: number) => {
    const sentMs = clock.monotonicMs()
    clock.advance(thereMs)
    const date = new Date(serviceMs()).toUTCString()
    clock.advance(backMs)
    time.update(date, sentMs)
  }
  expect(time.isKnown()).toBe(false)
  let worstMs = 0
  for (let n = 0; n < 500; n++) {
    ask((n * 7) % 40, (n * 13) % 60)
    clock.advance((n * 37) % 900)
    const behindMs = serviceMs() - time.nowMs()
    expect(behindMs).toBeGreaterThanOrEqual(0)
    worstMs = Math.max(worstMs, behindMs)
  }
  expect(worstMs).toBeLessThan(1101)
  expect(time.isKnown()).toBe(true)
  clock.advance(5 * 60_000 + 1)
  expect(time.isKnown()).toBe(false)
})

it('uses the last answer when answers contradict, and ignores an unreadable date', () => {
  const clock = new FakeClock()
  const time = new ServiceTime(clock)
  time.update('Thu, 01 Jan 2099 00:00:00 GMT', 0)
  time.update('Mon, 01 Jun 2026 12:00:00 GMT', 0)
  expect(time.nowMs()).toBe(Date.UTC(2026, 5, 1, 12, 0, 0))
  time.update('yesterday', 0)
  expect(time.nowMs()).toBe(Date.UTC(2026, 5, 1, 12, 0, 0))
  clock.jumpWallTime(1001)
  expect(time.isKnown()).toBe(false)
})
