import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import {
  createOutbox,
  createReconciler,
  createRelay,
  createWorker,
  operationPolicy,
  type Operation,
  type RelayMessage,
} from '../../../src/durable/index.ts'
import { startMariadb, type MariadbServer } from '../../servers/mariadb.ts'
import { startPostgres, type PostgresServer } from '../../servers/postgres.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { hangingEffect, quickOperation } from './fair-fixture.ts'
import { DATABASES, openDatabase, type DatabaseKind } from '../outbox/relay-databases.ts'

// Uses the system clock. A call that hangs does so for longer than a test may take, so work that
// ends has not waited for it.

let postgres: PostgresServer
let mariadb: MariadbServer
beforeAll(async () => {
  postgres = await startPostgres()
  mariadb = await startMariadb()
}, 120_000)
afterAll(async () => {
  await postgres.close()
  await mariadb.close()
})

const HOUR_MS = 3_600_000
const OTHERS = Array.from({ length: 20 }, (_, n) => `t${n}`)

async function locate(kind: DatabaseKind): Promise<string> {
  if (kind === 'postgres') return postgres.database()
  if (kind === 'mariadb') return mariadb.database()
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  return folder.file('records.db')
}

async function setup(kind: DatabaseKind) {
  const { store, transact, close } = await openDatabase(kind, await locate(kind))
  onTestFinished(close)
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
  })
  const outbox = createOutbox({ engine })
  let keys = 0
  const request = (tenant: string, name: string) => ({
    scope: { tenant, operation: name },
    key: `k-${keys++}`,
    fingerprint: 'f',
    policy: operationPolicy(engine),
  })
  const accept = (one: Operation<string>, tenants: readonly string[]) =>
    Promise.all(
      tenants.map((tenant) =>
        engine.run(request(tenant, one.name), async (context) => {
          await one.accept(context, tenant)
          return new Uint8Array(0)
        }),
      ),
    )
  /** Adds the messages in one transaction. */
  const add = (topic: string, tenants: readonly (string | undefined)[]) =>
    transact(async ({ tx }) => {
      for (const tenant of tenants) {
        await outbox.add(tx, topic, 'x', tenant === undefined ? {} : { tenant })
      }
    })
  return { engine, events, request, accept, add }
}

/** Runs a part until the test ends, without waiting for work that hangs. */
function runOn(part: { run(signal: AbortSignal): Promise<void> }): void {
  const stop = new AbortController()
  onTestFinished(() => stop.abort())
  void part.run(stop.signal)
}

/** Resolves after the given number of calls. */
function counter(count: number) {
  const { promise, resolve } = Promise.withResolvers<void>()
  let calls = 0
  const called = () => {
    calls++
    if (calls === count) resolve()
  }
  return { called, reached: promise, calls: () => calls }
}

const times = (count: number, tenant: string) => Array.from({ length: count }, () => tenant)

describe.each(DATABASES)('%s', (kind) => {
  it('runs the operations of other tenants while those of one tenant hang', async () => {
    const { engine, accept } = await setup(kind)
    const { one: slow, sent } = hangingEffect('slow', { timeoutMs: HOUR_MS })
    const { one: quick, ran } = quickOperation('quick')
    await accept(slow, times(500, 'crowd'))
    const worker = createWorker({ engine, operations: [slow, quick], concurrency: 4, pollMs: 50 })
    runOn(worker)
    await expect.poll(() => sent.length, { timeout: 20_000 }).toBe(4)
    await accept(quick, OTHERS)
    await expect.poll(() => ran.length, { timeout: 20_000 }).toBe(OTHERS.length)
    expect(ran.toSorted()).toEqual(OTHERS.toSorted())
    const hung = { running: 4, overdue: 0, paused: [] }
    await expect.poll(() => worker.stats()).toEqual(hung)

    // Includes the same operation of another tenant.
    await accept(slow, ['late'])
    await expect.poll(() => sent, { timeout: 20_000 }).toContain('late')
    expect(sent.filter((tenant) => tenant === 'crowd').length).toBe(4)
  })

  it('relays other topics and tenants while the handlers of one topic hang', async () => {
    const { engine, add } = await setup(kind)
    const hung = counter(50)
    const good = counter(300)
    const others = counter(OTHERS.length)
    const never = new Promise<never>(() => undefined)
    const topics = {
      bad: ({ tenant }: RelayMessage) => {
        if (tenant !== 'crowd') return others.called()
        hung.called()
        return never
      },
      good: good.called,
    }
    await add('bad', times(300, 'crowd'))
    const relay = createRelay({ engine, topics, pollMs: 50, handlerTimeoutMs: HOUR_MS })
    runOn(relay)
    await hung.reached
    await add('good', times(300, 'any'))
    await add('bad', OTHERS)
    await Promise.all([good.reached, others.reached])
    expect(hung.calls()).toBe(50)
    expect((await relay.close({ graceMs: 0 })).abandoned).toBe(50)
  })

  it('asks other providers while one provider hangs', async () => {
    const { engine, request } = await setup(kind)
    let isAsking = false
    const asked: string[] = []
    const lost = (name: string, reconcile: () => Promise<never> | { kind: 'not_executed' }) =>
      hangingEffect(name, {
        timeoutMs: 1,
        reconcile: () => {
          if (!isAsking) return { kind: 'pending' }
          asked.push(name)
          return reconcile()
        },
      }).one
    const slow = lost('slow', () => new Promise<never>(() => undefined))
    const quick = lost('quick', () => ({ kind: 'not_executed' }))
    const lose = (one: Operation<string>, count: number) =>
      Promise.allSettled(
        times(count, 'acme').map((tenant) =>
          engine.run(request(tenant, one.name), one.work(tenant)),
        ),
      )
    await lose(slow, 40)
    await lose(quick, 10)
    isAsking = true
    const operations = [slow, quick]
    runOn(createReconciler({ engine, operations, timeoutMs: HOUR_MS, pollMs: 50 }))
    const count = (name: string) => asked.filter((one) => one === name).length
    await expect.poll(() => count('quick'), { timeout: 20_000 }).toBe(10)
    expect(count('slow')).toBeGreaterThan(0)
    expect(count('slow')).toBeLessThanOrEqual(12)
  })
})
