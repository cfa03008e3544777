// Takes about 15 s.
/** Limiters of rate-limiter-flexible that two nodes share, on real servers. */
import { Redis } from 'ioredis'
import mysql from 'mysql2'
import pg from 'pg'
import {
  RateLimiterMemory,
  RateLimiterMySQL,
  RateLimiterPostgres,
  RateLimiterRedis,
  type RateLimiterAbstract,
} from 'rate-limiter-flexible'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { Answer } from '../../../src/http/guard/exchange.ts'
import { createGuard } from '../../../src/http/guard/guard.ts'
import type { LimitOptions } from '../../../src/http/limits/limit-options.ts'
import { createStatus } from '../../../src/http/status/status.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { startMariadb } from '../../servers/mariadb.ts'
import { startPostgres } from '../../servers/postgres.ts'
import { newTestPrefix, startSharedRedis } from '../../servers/redis.ts'
import { startTcpProxy, type TcpProxy } from '../../servers/tcp-proxy.ts'
import { exchangeOf, InstantHandler, ok } from '../guard/instant-handler.ts'

/** Opens one limiter of a node. Limiters with one prefix share their points. */
type OpenLimiter = (points: number, keyPrefix: string) => Promise<RateLimiterAbstract>

interface LimiterServer {
  readonly name: string
  /** Prepares a database, and returns its limiters. `proxy` is on the way to it. */
  readonly prepare: () => Promise<{ readonly open: OpenLimiter; readonly proxy: TcpProxy }>
  readonly close: () => Promise<void>
}

/** Longer than a test takes, so that no window ends within it. */
const WINDOW_SECONDS = 600

/** How long a guard waits for its limiter. */
const GIVE_UP_MS = 500

type Request = Readonly<Record<string, string>>

/** Two guards and status handlers on one store, each with separate limiters. */
async function twoNodes(open: OpenLimiter, points: { newKeys: number; lookUps: number }) {
  const clock = new FakeClock()
  const events: EngineEvent[] = []
  const store = memoryStore({ clock })
  const engine = createEngine({ store, clock, onEvent: (event) => void events.push(event) })
  onTestFinished(async () => void (await engine.close()))
  const prefix = newTestPrefix()
  const limitsOf = async () => ({
    newKeys: await open(points.newKeys, `${prefix}-new`),
    lookUps: await open(points.lookUps, `${prefix}-look`),
  })
  const [left, right] = [node(engine, await limitsOf()), node(engine, await limitsOf())]
  return { left, right, clock, failures: () => events.filter(isFailure) }
}

function node(engine: Engine, limits: LimitOptions<Request>) {
  const tenant = (request: Request) => request['tenant'] ?? 'acme'
  const principal = (request: Request) => request['user'] ?? 'ann'
  const guard = createGuard<Request>({ engine, tenant, principal, limits })
  const status = createStatus<Request>({ engine, tenant, principal, limits }, ({ id }) => id)
  return {
    send: async (key: string, more: Request = {}) => {
      const request = { 'idempotency-key': key, ...more }
      const handler = new InstantHandler(ok(key))
      return { ...shownOf(await guard.handle(request, exchangeOf(request), handler)), handler }
    },
    ask: async (id: string, more: Request = {}) =>
      (await status.reply({ id, ...more }, { method: 'GET', accepted: '' })).status,
  }
}

type Failure = Extract<EngineEvent, { kind: 'limiter_failed' }>

const isFailure = (event: EngineEvent): event is Failure => event.kind === 'limiter_failed'

/** Lets the guard wait in vain: for the question before its claim, and for the charge after it. */
async function unanswered<Value>(clock: FakeClock, sent: Promise<Value>): Promise<Value> {
  await clock.advanceAsync(GIVE_UP_MS)
  await clock.advanceAsync(GIVE_UP_MS)
  return sent
}

/** A handler's own reply counts as 200, as in `ok`. */
function shownOf(answer: Answer): { status: number; headers: Record<string, string> } {
  if (answer.kind !== 'reply') return { status: 200, headers: {} }
  return { status: answer.reply.status, headers: Object.fromEntries(answer.reply.headers) }
}

const MANY = 1_000

async function postgresLimiters(): Promise<LimiterServer> {
  const server = await startPostgres()
  return {
    name: 'PostgreSQL',
    close: () => server.close(),
    prepare: async () => {
      const url = await server.database()
      const { hostname: host, port } = new URL(url)
      const proxy = await startTcpProxy({ host, port: Number(port) })
      onTestFinished(proxy.close)
      const open: OpenLimiter = async (points, keyPrefix) => {
        const pool = new pg.Pool({ connectionString: proxy.through(url) })
        pool.on('error', () => undefined)
        onTestFinished(() => pool.end())
        return ready((done) => {
          const options = { storeClient: pool, tableName: 'limits', keyPrefix, points }
          return new RateLimiterPostgres({ ...options, duration: WINDOW_SECONDS }, done)
        })
      }
      return { open, proxy }
    },
  }
}

async function mysqlLimiters(): Promise<LimiterServer> {
  const server = await startMariadb()
  return {
    name: 'MariaDB',
    close: () => server.close(),
    prepare: async () => {
      const url = await server.database()
      const { hostname: host, port, pathname } = new URL(url)
      const proxy = await startTcpProxy({ host, port: Number(port) })
      onTestFinished(proxy.close)
      const open: OpenLimiter = async (points, keyPrefix) => {
        const pool = mysql.createPool(proxy.through(url))
        onTestFinished(() => new Promise<void>((resolve) => pool.end(() => resolve())))
        return ready((done) => {
          const dbName = pathname.slice(1)
          const options = { storeClient: pool, dbName, tableName: 'limits', keyPrefix, points }
          return new RateLimiterMySQL({ ...options, duration: WINDOW_SECONDS }, done)
        })
      }
      return { open, proxy }
    },
  }
}

/** `client`: which of the two clients of Redis. */
async function redisLimiters(client: 'ioredis' | 'redis'): Promise<LimiterServer> {
  const server = await startSharedRedis()
  return {
    name: `Redis with ${client}`,
    close: () => server.close(),
    prepare: async () => {
      const { hostname: host, port } = new URL(server.url)
      const proxy = await startTcpProxy({ host, port: Number(port) })
      onTestFinished(proxy.close)
      const url = proxy.through(server.url)
      const open: OpenLimiter = async (points, keyPrefix) => {
        const storeClient = client === 'ioredis' ? openIoredis(url) : await openNodeRedis(url)
        const useRedisPackage = client === 'redis'
        const options = { storeClient, useRedisPackage, keyPrefix, points }
        return new RateLimiterRedis({ ...options, duration: WINDOW_SECONDS })
      }
      return { open, proxy }
    },
  }
}

function openIoredis(url: string): Redis {
  const client = new Redis(url)
  client.on('error', () => undefined)
  onTestFinished(() => client.disconnect())
  return client
}

async function openNodeRedis(url: string) {
  const client = createClient({ url })
  client.on('error', () => undefined)
  await client.connect()
  onTestFinished(() => client.destroy())
  return client
}

/** The limiters of databases create their table first. */
function ready(
  open: (done: (error?: Error) => void) => RateLimiterAbstract,
): Promise<RateLimiterAbstract> {
  return new Promise((resolve, reject) => {
    const limiter: RateLimiterAbstract = open((error) => {
      if (error === undefined) resolve(limiter)
      else reject(error)
    })
  })
}

describe.each([
  ['PostgreSQL', postgresLimiters],
  ['MariaDB', mysqlLimiters],
  ['Redis with ioredis', () => redisLimiters('ioredis')],
  ['Redis with redis', () => redisLimiters('redis')],
] as const)('limits that two nodes share on %s', (_name, start) => {
  let server: LimiterServer

  beforeAll(async () => {
    server = await start()
  })
  afterAll(() => server?.close())

  it('count the new keys of a tenant on both nodes, and answer 429 with the fields', async () => {
    const { open } = await server.prepare()
    const { left, right, failures } = await twoNodes(open, { newKeys: 3, lookUps: MANY })
    expect([(await left.send('a')).status, (await right.send('b')).status]).toEqual([200, 200])
    expect((await left.send('c')).status).toBe(200)

    for (const one of [left, right]) {
      const { status, headers, handler } = await one.send('d')
      expect([status, handler.entered]).toEqual([429, 0])
      const seconds = Number(headers['Retry-After'])
      expect(seconds).toBeGreaterThan(0)
      expect(seconds).toBeLessThanOrEqual(WINDOW_SECONDS)
      expect(headers).toMatchObject({
        RateLimit: `"new-keys";r=0;t=${seconds}`,
        'RateLimit-Policy': `"new-keys";q=3;w=${WINDOW_SECONDS}`,
      })
    }
    expect((await right.send('a')).headers['Idempotent-Replayed']).toBe('true')
    expect((await right.send('d', { tenant: 'other' })).status).toBe(200)
    expect(failures()).toEqual([])
  })

  it('count the look-ups of a caller on both nodes, by replay and by status', async () => {
    const { open } = await server.prepare()
    const { left, right, failures } = await twoNodes(open, { newKeys: MANY, lookUps: 3 })
    await left.send('a')
    const unknown = '018f0000-0000-7000-8000-000000000000'
    expect((await right.send('a')).headers['Idempotent-Replayed']).toBe('true')
    expect((await left.send('a')).headers['Idempotent-Replayed']).toBe('true')
    expect(await right.ask(unknown)).toBe(404)

    const { status, headers } = await left.send('a')
    expect([status, headers['RateLimit']]).toEqual([429, expect.stringMatching(/^"look-ups";r=0/)])
    expect([await left.ask(unknown), await right.ask(unknown)]).toEqual([429, 429])
    expect(await right.ask(unknown, { user: 'bob' })).toBe(404)
    expect((await right.send('b')).status).toBe(200)
    expect(failures()).toEqual([])
  })

  it('admit no more new keys than the limit and the requests in flight', async () => {
    const { open } = await server.prepare()
    const { left, right } = await twoNodes(open, { newKeys: 5, lookUps: MANY })
    const inFlight = 4
    let ran = 0
    const senders = Array.from({ length: inFlight }, async (_, sender) => {
      for (let n = 0; n < 10; n++) {
        const one = n % 2 === 0 ? left : right
        const { handler } = await one.send(`${sender}-${n}`)
        ran += handler.entered
      }
    })
    await Promise.all(senders)
    expect(ran).toBeGreaterThanOrEqual(5)
    expect(ran).toBeLessThan(5 + inFlight)
  })

  it('let requests pass while the limiter gets no answer, with an event', async () => {
    const { open, proxy } = await server.prepare()
    const { left, clock, failures } = await twoNodes(open, { newKeys: 1, lookUps: 1 })
    await left.send('a')
    expect((await left.send('b')).status).toBe(429)

    proxy.silence()
    const send = (key: string) => unanswered(clock, left.send(key))
    expect((await send('b')).status).toBe(200)
    expect((await send('a')).headers['Idempotent-Replayed']).toBe('true')
    expect((await send('a')).headers['Idempotent-Replayed']).toBe('true')
    const limits = failures().map(({ limit }) => limit)
    // Asked before the claim, charged after it; then two look-ups, each asked as a new key first.
    const asked = ['new_keys', 'new_keys', 'new_keys', 'look_ups', 'new_keys', 'look_ups']
    expect(limits).toEqual(asked)
    expect(failures()[0]).toMatchObject({ tenant: 'acme', error: expect.any(Error) })
    // The clients get their answers, so that they can be closed.
    proxy.resume('alive')
  })
})

describe('limits in the memory of one node', () => {
  const open: OpenLimiter = async (points, keyPrefix) =>
    new RateLimiterMemory({ points, keyPrefix, duration: WINDOW_SECONDS })

  it('count for each node separately', async () => {
    const { left, right } = await twoNodes(open, { newKeys: 1, lookUps: 1 })
    expect([(await left.send('a')).status, (await left.send('b')).status]).toEqual([200, 429])
    expect([(await right.send('b')).status, (await right.send('c')).status]).toEqual([200, 429])
  })
})
