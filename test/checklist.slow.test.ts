/**
 * A reviewer's checklist for an API that is safe to retry. The first five groups verify behaviour,
 * the last is the list of gates before shipping. Each line is tested with real parts: over HTTP, on
 * a durable store, and with processes if the line is about processes. If the answer of this package
 * differs from the expected one, the test says which it is, and why.
 */
import express from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  auditRoutes,
  idempotency,
  idempotencyOf,
  requireProtected,
} from '../src/adapters/express/index.ts'
import { EVENT_COUNTERS, type EngineEvent } from '../src/core/events.ts'
import { identityOf } from '../src/core/record/identity.ts'
import { createWorker, defineOperation } from '../src/durable/index.ts'
import { describeIdempotency } from '../src/http/openapi/openapi.ts'
import { PROBLEMS } from '../src/protocol/problems.ts'
import { cachedStore, memoryCache } from '../src/stores/cached/index.ts'
import { postgresStore } from '../src/stores/postgres/index.ts'
import { FIND, forTable } from '../src/stores/sqlite/sql.ts'
import { FakeClock } from '../src/testing/fake-clock.ts'
import { gate, header, json, problemOf, serve, text, wrapStore } from './adapters/run-express.ts'
import { docs } from './checklist/docs.ts'
import { duplicateShare } from './checklist/duplicate-share.ts'
import { explainedPool } from './checklist/explained.ts'
import { killPayment } from './checklist/killed-payment.ts'
import { startNodes } from './checklist/nodes.ts'
import { holdPayments, payBehindLock } from './checklist/pay-behind-lock.ts'
import { beginReap, lockRecord, openRecords, recordsOf } from './checklist/records.ts'
import {
  chargeAt,
  openFile,
  openShop,
  openTimedShop,
  statusUrl,
  tenantOf,
  TOKEN,
  userOf,
  type Shop,
} from './checklist/shop.ts'
import { leaveStuck } from './checklist/stuck-key.ts'
import { Provider } from './durable/operations/provider.ts'
import { usePostgres } from './stores/postgres/setup.ts'

const setupPostgres = usePostgres({ private: true })

const MINUTE_MS = 60_000
const DAY_MS = 24 * 60 * MINUTE_MS
const LEASE_MS = MINUTE_MS
const SWEEP_MS = MINUTE_MS
/** Timeout for busy machines. */
const PATIENCE = { timeout: 15_000 }

const REPLAYED = 'idempotent-replayed'
const IN_PROGRESS = [409, PROBLEMS.key_in_progress.code]
const REUSED = [422, PROBLEMS.key_reused_with_different_payload.code]
const UNKNOWN = [409, PROBLEMS.outcome_unknown.code]

/** The scope of the shop's payments in the store. */
const scopeOf = (tenant: string) => ({ tenant, operation: 'POST /payments' })

const countOf = ({ events }: Pick<Shop, 'events'>, kind: EngineEvent['kind']) =>
  events.filter((event) => event.kind === kind).length

describe('Keys are reserved, and tenants are kept apart', () => {
  it('two identical concurrent requests make one payment, and both get its reply', async () => {
    // By default the second request gets 409 at once (tested below), because a waiting client holds
    // a connection. An option of the route makes it wait for the reply of the first.
    const busy = gate()
    const store = openFile().open()
    const watched = wrapStore(store, {
      claim: async (requests) => {
        const outcomes = await store.claim(requests)
        if (outcomes.some(({ kind }) => kind === 'in_progress')) busy.open()
        return outcomes
      },
    })
    const { pay, charges } = await openShop({
      store: watched,
      guard: { whileInProgress: { waitMs: 20_000 } },
      handler: async (till, req, res) => {
        await busy.passed
        till.charge(req, res)
      },
    })
    const replies = await Promise.all([pay({ key: 'k' }), pay({ key: 'k' })])
    expect(charges).toHaveLength(1)
    expect(replies.map(({ status }) => status)).toEqual([201, 201])
    expect(text(replies[0])).toBe(text(replies[1]))
    expect(replies.filter((reply) => header(reply, REPLAYED) === 'true')).toHaveLength(1)
  })

  it('the same key with another body gets 422', async () => {
    const { pay, send, charges } = await openShop()
    expect((await pay({ key: 'k', amountCents: 500 })).status).toBe(201)
    expect(problemOf(await pay({ key: 'k', amountCents: 900 }))).toEqual(REUSED)
    expect(charges).toEqual([{ tenant: 'acme', amountCents: 500 }])
    // The same request in another spelling has the same fingerprint.
    const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' }
    const respelt = { path: '/payments', key: 'k', headers, body: '{ "amountCents": 5.0e2 }' }
    expect(header(await send(respelt), REPLAYED)).toBe('true')
  })

  it('two tenants with the same key each get a separate payment and reply', async () => {
    const { pay, charges } = await openShop()
    const tokens = ['acme/ada/1', 'globex/gus/1']
    const first = await Promise.all(tokens.map((token) => pay({ key: 'k', token })))
    expect(charges.map(({ tenant }) => tenant).toSorted()).toEqual(['acme', 'globex'])
    expect(text(first[0]!)).not.toBe(text(first[1]!))
    for (const [n, token] of tokens.entries()) {
      expect(text(await pay({ key: 'k', token }))).toBe(text(first[n]!))
    }
    expect(charges).toHaveLength(2)
  })

  it('another session of the same user gets the reply, and another user gets 422', async () => {
    // The user is compared, not the session: a user who signs in again while a request is in
    // progress must find it. Another user of the tenant gets 422, and no part of the reply.
    const guard = { principal: userOf }
    const { pay, charges } = await openShop({ guard })
    const first = await pay({ key: 'k', token: 'acme/ada/1' })
    const signedInAgain = await pay({ key: 'k', token: 'acme/ada/2' })
    expect([header(signedInAgain, REPLAYED), text(signedInAgain)]).toEqual(['true', text(first)])
    const other = await pay({ key: 'k', token: 'acme/bob/1' })
    expect(problemOf(other)).toEqual(REUSED)
    expect(text(other)).not.toContain(String(json(first)['paymentId']))
    expect(charges).toHaveLength(1)
  })

  it('a unique constraint of the database covers tenant and key', async () => {
    // One column: a hash over tenant, operation and key. Names have any length, and a key may be
    // used once on each route; with `scopeBy: 'tenant'` the operation is left out.
    const { open, app } = await setupPostgres()
    const { path, open: openSqlite } = openFile()
    const tenants = ['acme', 'globex']
    const identities = tenants.map((tenant) => identityOf(scopeOf(tenant), 'k')).toSorted()
    for (const store of [await open(), openSqlite()]) {
      const { pay } = await openShop({ store })
      for (const tenant of tenants) await pay({ key: 'k', token: `${tenant}/u/1` })
    }
    const [postgres, sqlite] = [recordsOf(app), openRecords(path)]
    for (const records of [postgres, sqlite]) expect(await records.identities()).toEqual(identities)
    const constraint = 'oncekey_record_pkey'
    await expect(postgres.copy()).rejects.toMatchObject({ code: '23505', constraint })
    await expect(sqlite.copy()).rejects.toThrow('UNIQUE constraint failed: oncekey_record.identity')
  })
})

describe('Concurrent requests, and several nodes', () => {
  it('the same key on two nodes at once is worked on by one of them', async () => {
    const { open, url, app, paid } = await setupPostgres()
    await open()
    const letGo = await holdPayments(app)
    const { pay, entered } = await startNodes(url)
    // Ten concurrent requests, five to each node, while no payment can be made: nine are refused.
    let refused = 0
    const allRefused = gate()
    const replies = Array.from({ length: 10 }, async (_, n) => {
      const reply = await pay(n % 2)
      if (reply.body.includes(PROBLEMS.key_in_progress.code) && ++refused === 9) allRefused.open()
      return reply
    })
    await Promise.race([allRefused.passed, Promise.all(replies)])
    expect([refused, entered()]).toEqual([9, 1])
    await letGo()
    const done = (await Promise.all(replies)).filter(({ status }) => status === 201)
    expect(done).toHaveLength(1)
    expect(await paid()).toEqual([JSON.parse(done[0]!.body).paymentId])
    // Both nodes now return the reply of the node that paid.
    expect(await Promise.all([pay(0), pay(1)])).toEqual([done[0], done[0]])
  })

  it('a 409 tells the client when to retry, with Retry-After', async () => {
    const entered = gate()
    const goOn = gate()
    const { pay } = await openShop({
      handler: async (till, req, res) => {
        entered.open()
        await goOn.passed
        till.charge(req, res)
      },
    })
    const first = pay({ key: 'k' })
    await entered.passed
    const second = await pay({ key: 'k' })
    expect(problemOf(second)).toEqual(IN_PROGRESS)
    expect(header(second, 'retry-after')).toMatch(/^[1-5]$/)
    goOn.open()
    expect((await first).status).toBe(201)
  })

  it('a POST without a key gets 400', async () => {
    const { pay, charges } = await openShop()
    expect(problemOf(await pay())).toEqual([400, PROBLEMS.key_missing.code])
    expect(charges).toEqual([])
  })
})

describe('Failures', () => {
  it('a worker killed between a charge and its record leads to one charge', async () => {
    const { charges, problemsAfter } = await killPayment('accepted', 'charged')
    expect(charges).toBe(1)
    // The provider would charge again for the same key, so recovery queries it first.
    expect(await problemsAfter({ way: 'asked', order: 'client' })).toEqual([])
    expect(await problemsAfter({ way: 'asked', order: 'alone' })).toEqual([])
  })

  it('a request gets 503 and does nothing while the key database is down', async () => {
    const { server, connect, open } = await setupPostgres()
    const store = await open({ pool: connect({ connectionTimeoutMillis: 2_000 }) })
    let entered = 0
    const { pay, charges, events } = await openShop({
      store,
      handler: (till, req, res) => {
        entered++
        till.charge(req, res)
      },
    })
    await pay({ key: 'before' })
    await server.stopAtOnce()
    let isDown = true
    const start = () => (isDown ? server.start().then(() => (isDown = false)) : undefined)
    onTestFinished(async () => void (await start()))
    // Also for a completed key, because the store cannot be read.
    for (const key of ['k', 'before']) {
      const reply = await pay({ key })
      expect(problemOf(reply)).toEqual([503, PROBLEMS.store_unavailable.code])
      expect(header(reply, 'retry-after')).toBe('1')
    }
    expect([entered, charges.length]).toEqual([1, 1])
    expect(countOf({ events }, 'store_error')).toBeGreaterThanOrEqual(2)
    await start()
    expect((await pay({ key: 'k' })).status).toBe(201)
    expect(header(await pay({ key: 'before' }), REPLAYED)).toBe('true')
    expect([entered, charges.length]).toEqual([2, 2])
  })

  it('a request runs again after a 500', async () => {
    let runs = 0
    const { pay, charges } = await openShop({
      handler: (till, req, res) => {
        if (++runs === 1) throw new Error('a bug, to be fixed')
        till.charge(req, res)
      },
    })
    expect((await pay({ key: 'k' })).status).toBe(500)
    const second = await pay({ key: 'k' })
    expect([second.status, header(second, REPLAYED)]).toEqual([201, undefined])
    expect(text(await pay({ key: 'k' }))).toBe(text(second))
    expect([runs, charges.length]).toEqual([2, 1])
  })

  it('every step of a flow needs a key, and a step without a guard is reported', async () => {
    const guard = idempotency({ store: openFile().open(), tenant: tenantOf })
    const app = express()
    const steps = ['/orders', '/orders/:id/payment', '/orders/:id/shipment']
    const done: string[] = []
    for (const step of steps) {
      app.post(step, guard, (req, res) => {
        done.push(req.path)
        res.sendStatus(201)
      })
    }
    const audit = auditRoutes(app)
    expect(audit.protected.map(({ path }) => path)).toEqual(steps)
    requireProtected(audit)
    const { send } = await serve(app)
    for (const { method, path } of audit.protected) {
      const headers = { authorization: `Bearer ${TOKEN}` }
      const reply = await send({ method, path: path.replace(':id', '1'), headers })
      expect(problemOf(reply)).toEqual([400, PROBLEMS.key_missing.code])
    }
    expect(done).toEqual([])
    // A server with this route would not start.
    app.post('/orders/:id/refund', (_req, res) => void res.sendStatus(201))
    expect(() => requireProtected(auditRoutes(app))).toThrow('POST /orders/:id/refund')
  })
})

describe('Expiry and removal of keys', () => {
  it('a retry after the expiry runs again, visibly, and does not repeat the charge', async () => {
    const provider = new Provider()
    // The first reply states until when retries are safe. A later reply is not marked as a replay.
    const usual = await openTimedShop({
      handler: chargeAt(provider),
    })
    const first = await usual.pay({ key: 'k' })
    const expiry = Date.parse(header(first, 'idempotency-expires')!)
    expect(expiry).toBe(usual.clock.nowMs() + DAY_MS)
    await usual.clock.advanceAsync(DAY_MS)
    const late = await usual.pay({ key: 'k' })
    expect([late.status, header(late, REPLAYED)]).toEqual([201, undefined])
    expect(countOf(usual, 'reserve_reused')).toBe(1)
    // The provider recognises the downstream key.
    expect([provider.calls.length, provider.ledger.length]).toEqual([2, 1])
    expect(text(late)).toBe(text(first))

    // With `afterExpiry: 'refuse'` a second payment is never made: 410.
    const strict = await openTimedShop({ guard: { afterExpiry: 'refuse' } })
    await strict.pay({ key: 'k' })
    await strict.clock.advanceAsync(365 * DAY_MS)
    await strict.engine.reap()
    expect(problemOf(await strict.pay({ key: 'k' }))).toEqual([410, PROBLEMS.key_expired.code])
    expect(strict.charges).toHaveLength(1)

    // A request with an unknown outcome does not expire: it runs again only after a verdict.
    const doubtful = await openTimedShop({
      handler: (till, req) => {
        till.charges.push({ tenant: idempotencyOf(req).downstreamKey(), amountCents: 500 })
        throw new Error('the provider did not answer')
      },
    })
    await doubtful.pay({ key: 'k' })
    await doubtful.clock.advanceAsync(365 * DAY_MS)
    await doubtful.engine.reap()
    expect(problemOf(await doubtful.pay({ key: 'k' }))).toEqual(UNKNOWN)
    expect(doubtful.charges).toHaveLength(1)
  })

  it('expired keys are removed while requests continue, on PostgreSQL', async () => {
    const { open, app, connect, column } = await setupPostgres()
    const { pay, engine } = await openShop({ store: await open() })
    for (let n = 0; n < 5; n++) await pay({ key: `old-${n}` })
    await app.query(`UPDATE oncekey_record SET expires_at = now() - interval '1 h'`)
    await pay({ key: 'kept' })
    const unlock = await lockRecord(connect(), 'old-0')
    // The reap transaction stays open until the requests below are done.
    const { removed, locks, commit } = await beginReap(connect())
    expect(removed).toBe(4)
    // Both locks are compatible with concurrent reads and writes.
    expect(locks).toEqual(['RowExclusiveLock', 'RowShareLock'])
    expect((await pay({ key: 'new' })).status).toBe(201)
    expect(header(await pay({ key: 'kept' }), REPLAYED)).toBe('true')
    await commit()
    await unlock()
    // The locked record was skipped, and the next reap removes it.
    expect(await engine.reap()).toBe(1)
    expect(await column('SELECT key FROM oncekey_record ORDER BY key')).toEqual(['kept', 'new'])
  })

  it('expired keys are removed in small batches between requests, on SQLite', async () => {
    const { path, open } = openFile()
    const store = open()
    const removed: number[] = []
    const between: number[] = []
    const watched = wrapStore(store, {
      reap: async (request) => {
        const report = await store.reap(request)
        removed.push(report.removed)
        // The reaper is in progress, and a request is served before its next batch.
        between.push((await pay({ key: `between-${removed.length}` })).status)
        return report
      },
    })
    const { pay, engine } = await openShop({ store: watched })
    await pay({ key: 'old' })
    openRecords(path).expire(449)
    expect(await engine.reap()).toBe(450)
    expect(removed).toEqual([100, 100, 100, 100, 50])
    expect(between).toEqual([201, 201, 201, 201, 201])
  })
})

describe('Observability', () => {
  it('duplicates and replays are counted, and the docs list the alerts', async () => {
    const { pay, events } = await openShop()
    for (let n = 0; n < 3; n++) await pay({ key: 'k' })
    await pay({ key: 'k', amountCents: 1 })
    const counters = new Map<string, number>()
    for (const { kind } of events) {
      counters.set(EVENT_COUNTERS[kind], (counters.get(EVENT_COUNTERS[kind]) ?? 0) + 1)
    }
    expect(Object.fromEntries(counters)).toEqual({
      'api.idempotency.reserve.created.count': 1,
      'api.idempotency.reserve.replay.count': 2,
      'api.idempotency.reserve.key_misuse.count': 1,
    })
    const alerts = docs('events.md').split('## Alerts')[1]!
    const named = [...alerts.matchAll(/`([a-z]+_[a-z_]+)`/g)].map(([, kind]) => kind!)
    expect(named).toEqual(expect.arrayContaining(['reserve_replay', 'reserve_key_misuse']))
    expect(named.filter((kind) => !(kind in EVENT_COUNTERS))).toEqual([])
  })

  it('the share of duplicates is known for each tenant', async () => {
    const later = defineOperation({ name: 'later', run: async () => ({ status: 200, body: {} }) })
    const { pay, engine, events } = await openShop({
      guard: later.route,
      handler: (_till, req) => later.accept(idempotencyOf(req), undefined),
    })
    for (const key of ['a', 'b', 'c']) await pay({ key, token: 'acme/ada/1' })
    // A client in a retry loop.
    for (let n = 0; n < 10; n++) await pay({ key: 'g', token: 'globex/gus/1' })
    // Workers resume operations, which does not count as a request.
    expect(await createWorker({ engine, operations: [later] }).runOnce()).toMatchObject({
      completed: 4,
    })
    await pay({ key: 'a', token: 'acme/ada/1' })
    expect(['acme', 'globex'].map((tenant) => duplicateShare(events, tenant))).toEqual([0.25, 0.9])
  })

  it.each([
    { onLapse: 'unknown', to: 'unknown', retry: UNKNOWN },
    { onLapse: 'rerun', to: 'failed_retryable', retry: [201, undefined] },
  ] as const)(
    'a stuck key is $to after one lease and one sweep',
    async ({ onLapse, to, retry }) => {
      const { open } = openFile()
      await leaveStuck('k', onLapse, open)
      // The worst case: the lease ends just after a sweep.
      const clock = new FakeClock()
      clock.advance(LEASE_MS - 1)
      const second = await openShop({
        store: open(clock),
        engine: { clock, sweepEveryMs: SWEEP_MS },
        guard: { onLapse },
      })
      const target = { scope: scopeOf('acme'), key: 'k' }
      await clock.advanceAsync(SWEEP_MS - 1)
      expect(await second.engine.read(target)).toMatchObject({ state: 'in_progress' })
      await clock.advanceAsync(1)
      await expect
        .poll(() => second.events.filter(({ kind }) => kind === 'zombie_key'), PATIENCE)
        .toMatchObject([{ tenant: 'acme', to }])
      expect(await second.engine.read(target)).toMatchObject({ state: to })
      expect(problemOf(await second.pay({ key: 'k' }))).toEqual(retry)
      expect(second.charges).toHaveLength(to === 'unknown' ? 0 : 1)
    },
  )

  it('a tenant cannot read the stored reply of another tenant', async () => {
    const durable = openFile().open()
    let asked = 0
    const counted = wrapStore(durable, {
      claim: (requests) => {
        asked += requests.length
        return durable.claim(requests)
      },
    })
    const store = cachedStore({ durable: counted, cache: memoryCache() })
    const { pay, send, charges, events } = await openShop({ store })
    const ours = await pay({ key: 'k', token: 'acme/ada/1' })
    // Answered from the cache, without a call to the store.
    expect(text(await pay({ key: 'k', token: 'acme/ada/1' }))).toBe(text(ours))
    expect(asked).toBe(1)
    const theirs = await pay({ key: 'k', token: 'globex/gus/1' })
    expect([header(theirs, REPLAYED), charges.length]).toEqual([undefined, 2])
    expect(text(theirs)).not.toBe(text(ours))
    // Asking by id does not reveal that the record exists.
    const [{ recordId }] = events as [Extract<EngineEvent, { kind: 'reserve_created' }>]
    const look = (id: string, token: string) =>
      send({ method: 'GET', path: statusUrl(id), headers: { authorization: `Bearer ${token}` } })
    expect(text(await look(recordId, 'acme/ada/1'))).toBe(text(ours))
    const seen = await look(recordId, 'globex/gus/1')
    const missing = await look(crypto.randomUUID(), 'globex/gus/1')
    expect(problemOf(seen)).toEqual([404, PROBLEMS.record_not_found.code])
    expect(text(seen)).toBe(text(missing))
  })
})

describe('Gates before shipping', () => {
  it('the same key and body twice gets the same reply, the second from the store', async () => {
    const { pay, charges, events } = await openShop()
    const [first, second] = [await pay({ key: 'k' }), await pay({ key: 'k' })]
    expect(second.status).toBe(first.status)
    expect(second.body.equals(first.body)).toBe(true)
    for (const name of ['content-type', 'location', 'idempotency-expires']) {
      expect([name, header(second, name)]).toEqual([name, header(first, name)])
    }
    expect([header(first, REPLAYED), header(second, REPLAYED)]).toEqual([undefined, 'true'])
    expect([charges.length, countOf({ events }, 'reserve_replay')]).toEqual([1, 1])
  })

  it.each([
    { profile: 'ietf', status: 422 },
    { profile: 'stripe', status: 400 },
  ] as const)('another body of a key gets $status ($profile)', async ({ profile, status }) => {
    const { pay, charges } = await openShop({ guard: { profile } })
    await pay({ key: 'k', amountCents: 1 })
    const reply = await pay({ key: 'k', amountCents: 2 })
    expect(problemOf(reply)).toEqual([status, PROBLEMS.key_reused_with_different_payload.code])
    expect(charges).toHaveLength(1)
  })

  it('one of two concurrent requests behind a database lock runs, the other gets 409', async () => {
    const { open, app, paid } = await setupPostgres()
    const letGo = await holdPayments(app)
    const entered = gate()
    const { pay } = await openShop({
      store: await open(),
      handler: async (_till, _req, res) => {
        entered.open()
        res.status(201).json({ paymentId: await payBehindLock(app) })
      },
    })
    const first = pay({ key: 'k' })
    await entered.passed
    expect(problemOf(await pay({ key: 'k' }))).toEqual(IN_PROGRESS)
    await letGo()
    const reply = await first
    expect(reply.status).toBe(201)
    expect(await paid()).toEqual([json(reply)['paymentId']])
  })

  it('a payment killed within a phase continues after the last completed phase', async () => {
    const { record, problemsAfter } = await killPayment('inline', 'recorded')
    expect(record).toEqual({ state: 'in_progress', recovery_point: 'charge' })
    // The provider charges on every request and has no query API: a second charge would show.
    expect(await problemsAfter({ way: 'blind', order: 'client' })).toEqual([])
  })

  it('the query plan of the claim uses the unique index', async () => {
    const { open, url, column } = await setupPostgres()
    await open()
    const { pool, nodes } = explainedPool(url)
    const { pay } = await openShop({ store: postgresStore({ pool }) })
    expect((await pay({ key: 'k' })).status).toBe(201)
    expect((await pay({ key: 'k' })).status).toBe(201)
    const [insert] = nodes().filter((node) => node['Conflict Resolution'] !== undefined)
    expect(insert).toMatchObject({
      'Relation Name': 'oncekey_record',
      'Conflict Resolution': 'NOTHING',
      'Conflict Arbiter Indexes': ['oncekey_record_pkey'],
    })
    const read = nodes().flatMap((node) => {
      const isRead = node['Relation Name'] === 'oncekey_record' && /Scan/.test(node['Node Type'])
      return isRead ? [node['Index Name']] : []
    })
    expect(new Set(read)).toEqual(new Set(['oncekey_record_pkey']))
    const index = `SELECT indexdef FROM pg_indexes WHERE indexname = 'oncekey_record_pkey'`
    expect(await column(index)).toEqual([
      'CREATE UNIQUE INDEX oncekey_record_pkey ON public.oncekey_record USING btree (identity)',
    ])

    const { path, open: openSqlite } = openFile()
    openSqlite()
    const { file } = openRecords(path)
    const plan = file.prepare(`EXPLAIN QUERY PLAN ${forTable('oncekey_record', FIND)}`).all()
    expect(plan.map(({ detail }) => detail)).toEqual([
      'SEARCH oncekey_record USING INDEX oncekey_record_identity (identity=?)',
    ])
    const indexes = file.prepare(`SELECT name FROM pragma_index_list('oncekey_record')
      WHERE "unique" = 1 ORDER BY name`)
    expect(indexes.all().map(({ name }) => name)).toContain('oncekey_record_identity')
  })

  it('expired keys are removed automatically, and not early', async () => {
    let passes = 0
    const { pay, clock, engine, events, charges } = await openTimedShop({
      engine: { reapEveryMs: DAY_MS },
      wrap: (store) =>
        wrapStore(store, { reap: (request) => store.reap(request).finally(() => passes++) }),
    })
    await clock.advanceAsync(1)
    await pay({ key: 'k' })
    const target = { scope: scopeOf('acme'), key: 'k' }
    // The first pass runs one millisecond before the expiry.
    await clock.advanceAsync(DAY_MS - 1)
    await expect.poll(() => passes, PATIENCE).toBe(1)
    expect(await engine.read(target)).toMatchObject({ state: 'completed' })
    expect(header(await pay({ key: 'k' }), REPLAYED)).toBe('true')
    expect(countOf({ events }, 'ttl_pruned')).toBe(0)
    await clock.advanceAsync(DAY_MS)
    await expect.poll(() => countOf({ events }, 'ttl_pruned'), PATIENCE).toBe(1)
    expect(await engine.read(target)).toBeUndefined()
    expect(charges).toHaveLength(1)
  })

  it.each(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE'])('a %s needs no key', async (method) => {
    const { send, events } = await openShop()
    const headers = { authorization: `Bearer ${TOKEN}` }
    for (let n = 0; n < 2; n++) {
      const reply = await send({ method, path: '/payments/1', headers })
      expect([reply.status, header(reply, REPLAYED)]).toEqual([200, undefined])
    }
    expect(events).toEqual([])
    expect((await send({ method: 'PATCH', path: '/payments/1', headers })).status).toBe(400)
  })

  it('the docs list every status in both profiles, and the retention of replies', () => {
    const rows = [...docs('problems.md').matchAll(/^\| \[`(\w+)`\]\S+ \| (\d+) \| (\d+) \|/gm)]
    const documented = rows.map(([, code, ...statuses]) => [code, statuses.map(Number)])
    const answered = Object.values(PROBLEMS).map((one) => [
      one.code,
      [one.status, one.stripeStatus],
    ])
    expect(Object.fromEntries(documented)).toEqual(Object.fromEntries(answered))
    expect(docs('problems.md')).toContain('| `Idempotency-Expires` |')
    expect(docs('options.md')).toMatch(/^\| `retentionMs` \| 86 400 000 \(24 h\) \|/m)

    const post = { responses: { 201: { description: 'Paid' } } }
    const document = { openapi: '3.1.0', info: {}, paths: { '/payments': { post } } }
    const described = describeIdempotency(document)
    const { responses } = described.paths['/payments'].post
    expect(Object.keys(responses)).toEqual(['201', '400', '409', '413', '422', '503'])
    expect(responses[201]).toHaveProperty('headers.Idempotency-Expires')
    expect(JSON.stringify(described)).toContain('until which the reply of this key is kept')
  })
})
