import type { FakeClock } from '../../../src/testing/fake-clock.ts'
import { describe, expect, it } from 'vitest'
import { newRecordId, newToken } from '../../../src/core/record/identity.ts'
import {
  createOutbox,
  createRelay,
  createWorker,
  operationPolicy,
} from '../../../src/durable/index.ts'
import { ledgerJob } from '../../../src/durable/reconciliation/ledger-job.ts'
import type { MaintenanceOptions } from '../../../src/durable/maintenance/maintenance-options.ts'
import { createMaintenance } from '../../../src/durable/maintenance/maintenance.ts'
import { createOperator } from '../../../src/durable/operator/operator.ts'
import { isTimedOutReply } from '../../../src/http/reply/abandoned-reply.ts'
import { encodeAbandonedReply } from '../../../src/http/reply/http-reply.ts'
import { openReply } from '../../../src/http/reply/reply-encryption.ts'
import { claimRequest } from '../../../src/testing/store-cases/store-case.ts'
import {
  bytes,
  operatorFixture,
  lostPayment,
  type OperatorFixture,
} from '../operator/operator-fixture.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

function setup(options: Partial<MaintenanceOptions> = {}) {
  const fixture = operatorFixture()
  const { engine } = fixture
  const create = (changes: Partial<MaintenanceOptions> = {}) =>
    createMaintenance({ engine, ...options, ...changes })
  return { ...fixture, fixture, create }
}

/** Accepts an operation that no worker has started. */
async function accepted({ engine, pay, record }: OperatorFixture, key = 'k') {
  const scope = { tenant: 'acme', operation: 'pay' }
  const policy = operationPolicy(engine)
  await engine.run({ scope, key, fingerprint: 'f', policy }, async (context) => {
    await pay.accept(context, { amount: 5 })
    return new Uint8Array(0)
  })
  return record(key)
}

/** A holder that crashed: its lease is over, and no request comes for its key. */
async function silentHolder({ store }: OperatorFixture) {
  await store.claim([claimRequest({ key: 'silent', leaseMs: 1_000 })])
}

async function relayedMessage({ store, engine }: OperatorFixture) {
  const { outbox } = store.durable
  const id = newRecordId(0)
  const scope = { tenant: 'acme', operation: 'mail' }
  await engine.run({ scope, key: id, fingerprint: 'f' }, (context) =>
    context.transaction((tx) => {
      const plain = { topic: 'mail', key: undefined, partition: undefined, delayMs: 0 }
      void outbox.add(tx, { id, ...plain, payload: bytes('{}') })
      return bytes('x')
    }),
  )
  const claim = { topics: ['mail'], limit: 1, leaseMs: 1_000, token: newToken() }
  const [held] = await outbox.claim(claim)
  await outbox.settle([{ ...held!, kind: 'done', providerId: undefined }])
  return id
}

const part = (runOnce: () => Promise<unknown>) => ({ runOnce })

/** Counts the passes of each task. */
function counted(names: readonly string[]) {
  const counts: Record<string, number> = Object.fromEntries(names.map((name) => [name, 0]))
  const parts = names.map((name) => [
    name,
    part(async () => {
      counts[name]!++
    }),
  ])
  return { counts, parts: Object.fromEntries(parts) as Partial<MaintenanceOptions> }
}

describe('runOnce of maintenance', () => {
  it('runs every task, and each emits its event', async () => {
    const { fixture, create, engine, pay, provider, clock, reconciler, heard, record } = setup()
    await lostPayment(fixture)
    await silentHolder(fixture)
    await relayedMessage(fixture)
    await engine.run(
      { scope: { tenant: 'acme', operation: 'old' }, key: 'k', fingerprint: 'f' },
      () => bytes('x'),
    )
    await clock.advanceAsync(8 * DAY_MS)
    provider.answer = async () => ({ kind: 'done', result: { id: 'ch_1', amount: 5 } })
    let relayed = 0
    const job = ledgerJob({ engine, name: 'l', ours: () => [], theirs: () => [], periodsBack: 1 })
    const maintenance = create({
      worker: createWorker({ engine, operations: [pay] }),
      reconciler: reconciler(),
      relay: part(async () => relayed++),
      ledgers: [job],
    })
    const report = await maintenance.runOnce()
    expect(Object.keys(report)).toEqual([
      'sweep',
      'reap',
      'prune',
      'unrelayed',
      'complete',
      'reconcile',
      'relay',
      'ledger l',
    ])
    expect(Object.values(report).map(({ kind }) => kind)).toEqual(
      Object.keys(report).map(() => 'done'),
    )
    await maintenance.runOnce()
    expect(heard('zombie_key')).toHaveLength(1)
    expect(heard('ttl_pruned')).not.toEqual([])
    expect(heard('outbox_pruned')).toEqual([{ kind: 'outbox_pruned', count: 1 }])
    expect(heard('effect_found')).toHaveLength(1)
    expect(heard('operation_resumed')).toHaveLength(1)
    expect(heard('ledger_compared')).toHaveLength(1)
    expect(relayed).toBe(2)
    expect((await record()).state).toBe('completed')
    expect(heard('maintenance_failed')).toEqual([])
  })

  it('emits the failure of a task and runs the others', async () => {
    const { create, heard } = setup()
    const { counts, parts } = counted(['relay'])
    const report = await create({
      ...parts,
      worker: part(async () => {
        throw new Error('no worker today')
      }),
      reconciler: part(() => {
        throw new Error('thrown at once')
      }),
    }).runOnce()
    expect(report['complete']).toMatchObject({ kind: 'failed' })
    expect(report['reconcile']).toMatchObject({ kind: 'failed' })
    expect([report['sweep']!.kind, report['relay']!.kind, counts]).toEqual([
      'done',
      'done',
      { relay: 1 },
    ])
    expect(
      heard('maintenance_failed')
        .map(({ task }) => task)
        .toSorted(),
    ).toEqual(['complete', 'reconcile'])
  })

  it('reports a task that hangs, and does not start it a second time', async () => {
    const { create, clock, heard } = setup()
    let calls = 0
    const worker = part(() => {
      calls++
      return new Promise(() => {})
    })
    const maintenance = create({ worker, passTimeoutMs: 10_000 })
    const pass = maintenance.runOnce()
    await clock.advanceAsync(10_000)
    expect((await pass)['complete']).toMatchObject({
      kind: 'failed',
      error: { message: 'the pass still runs after 10000 ms' },
    })
    const next = await maintenance.runOnce()
    expect(next['complete']).toMatchObject({
      error: { message: 'the previous pass of the task still runs' },
    })
    expect(calls).toBe(1)
    expect(heard('maintenance_failed')).toHaveLength(2)
  })

  it('prunes no message before keepMessagesMs', async () => {
    const { fixture, create, clock, store } = setup()
    const id = await relayedMessage(fixture)
    await clock.advanceAsync(7 * DAY_MS - 1)
    await create().runOnce()
    expect(await store.durable.outbox.read(id)).toBeDefined()
    await clock.advanceAsync(2)
    await create().runOnce()
    expect(await store.durable.outbox.read(id)).toBeUndefined()
  })

  it('does each piece of work once on many nodes at the same time', async () => {
    const { fixture, create, engine, pay, provider, clock, reconciler, heard } = setup()
    for (let n = 0; n < 4; n++) await lostPayment(fixture, `k${n}`)
    await silentHolder(fixture)
    await clock.advanceAsync(60_000)
    provider.answer = async () => ({ kind: 'done', result: { id: 'ch_1', amount: 5 } })
    const node = () =>
      create({ worker: createWorker({ engine, operations: [pay] }), reconciler: reconciler() })
    const nodes = [node(), node(), node()]
    for (let n = 0; n < 3; n++) {
      await Promise.all(nodes.map((one) => one.runOnce()))
      await clock.advanceAsync(5_000)
    }
    expect(provider.asked).toBe(4)
    expect(heard('zombie_key')).toHaveLength(1)
    expect(heard('operation_resumed')).toHaveLength(4)
    expect(heard('maintenance_failed')).toEqual([])
  })
})

describe('accepted work that no worker started', () => {
  it('completes accepted work without a worker with 408, kept for one more retention', async () => {
    const { fixture, create, clock, record, heard, engine } = setup()
    const { recordId } = await accepted(fixture)
    await clock.advanceAsync(DAY_MS - 1)
    await create().runOnce()
    expect((await record()).state).toBe('pending')
    await clock.advanceAsync(1)
    await create().runOnce()
    const ended = (await engine.read({ recordId }))!
    const { state, result, expiresAt } = ended
    expect(state).toBe('completed')
    // A route with requireEncryption accepts only this unencrypted reply.
    expect(isTimedOutReply(result!)).toBe(true)
    const reading = { encryption: undefined, requireEncryption: false }
    const opened = await openReply(result!, ended, reading)
    if (opened.kind === 'unreadable') throw new Error('unreadable')
    const { status, headers, body } = opened.reply
    expect(status).toBe(408)
    expect(headers).toEqual([['content-type', 'application/problem+json; charset=utf-8']])
    expect(JSON.parse(new TextDecoder().decode(body))).toMatchObject({
      status: 408,
      code: 'operation_timed_out',
    })
    expect(expiresAt.getTime()).toBe(clock.nowMs() + DAY_MS)
    expect(heard('operation_abandoned')).toEqual([{ kind: 'operation_abandoned', count: 1 }])
    expect(heard('ttl_pruned')).toEqual([])
  })

  it('uses abandonedReply for accepted work, or keeps it open with false', async () => {
    const { fixture, create, clock, record } = setup()
    await accepted(fixture)
    await clock.advanceAsync(DAY_MS)
    await create({ abandonedReply: false }).runOnce()
    expect((await record()).state).toBe('pending')
    const abandonedReply = { status: 410, body: 'gone' }
    await create({ abandonedReply }).runOnce()
    const result = encodeAbandonedReply(abandonedReply)
    expect((await record()).result).toEqual(new Uint8Array(result))
  })
})

describe('run of maintenance', () => {
  it('runs every task at its own interval', async () => {
    const { create, clock } = setup()
    const { counts, parts } = counted(['worker', 'reconciler', 'relay'])
    const stop = new AbortController()
    const every = { completeMs: 1_000, reconcileMs: 10_000, relayMs: 100_000 }
    const running = create({ ...parts, every }).run(stop.signal)
    await clock.advanceAsync(100_000)
    stop.abort()
    await running
    // Each interval varies by up to a tenth.
    expect(counts['worker']).toBeGreaterThanOrEqual(90)
    expect(counts['worker']).toBeLessThanOrEqual(112)
    expect(counts['reconciler']).toBeGreaterThanOrEqual(9)
    expect(counts['reconciler']).toBeLessThanOrEqual(12)
    expect(counts['relay']).toBeGreaterThanOrEqual(1)
    expect(counts['relay']).toBeLessThanOrEqual(2)
    expect(clock.pendingTimers).toBe(0)
  })

  it('keeps running other tasks while one fails or hangs', async () => {
    const { create, clock, heard } = setup()
    const { counts, parts } = counted(['relay'])
    let failures = 0
    const stop = new AbortController()
    const running = create({
      ...parts,
      worker: part(async () => {
        failures++
        throw new Error('again')
      }),
      reconciler: part(() => new Promise(() => {})),
      graceMs: 5_000,
    }).run(stop.signal)
    await clock.advanceAsync(60_000)
    expect(counts['relay']).toBeGreaterThan(50)
    expect(failures).toBeGreaterThan(50)
    stop.abort()
    await clock.advanceAsync(5_000)
    await running
    const failed = heard('maintenance_failed')
    expect(failed.filter(({ task }) => task === 'complete')).toHaveLength(failures)
    // A task that does not end is awaited for graceMs, and then named.
    expect(failed.at(-1)).toMatchObject({
      task: 'reconcile',
      error: { message: 'the task still runs 5000 ms after shutdown began' },
    })
  })

  it('calls run of a part that has it, and starts it again when it ends', async () => {
    const { create, clock, heard } = setup()
    let [begun, ended] = [0, 0]
    const relay = {
      runOnce: async () => {},
      run: async (signal: AbortSignal) => {
        begun++
        if (begun === 1) throw new Error('lost the connection')
        if (begun === 2) return
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        ended++
      },
    }
    const stop = new AbortController()
    const running = create({ relay }).run(stop.signal)
    await clock.advanceAsync(20_000)
    expect(begun).toBe(3)
    expect(heard('maintenance_failed')).toMatchObject([
      { task: 'relay', error: { message: 'lost the connection' } },
      { task: 'relay', error: { message: expect.stringContaining('run() ended before') } },
    ])
    stop.abort()
    await running
    expect(ended).toBe(1)
  })

  it('relays messages, and relays dead ones again after an operator retries them', async () => {
    const { create, engine, clock, heard } = setup()
    const outbox = createOutbox({ engine })
    const got: unknown[] = []
    let isDown = true
    const relay = createRelay({
      engine,
      maxAttempts: 1,
      topics: {
        mail: ({ payload }) => {
          if (isDown) throw new Error('no route')
          got.push(payload)
        },
      },
    })
    const stop = new AbortController()
    const running = create({ relay }).run(stop.signal)
    const scope = { tenant: 'acme', operation: 'mail' }
    await engine.run({ scope, key: 'k', fingerprint: 'f' }, (context) =>
      context.transaction((tx) => {
        void outbox.add(tx, 'mail', { to: 'ada' })
        return bytes('x')
      }),
    )
    await clock.advanceAsync(5_000)
    const [dead] = heard('message_dead')
    isDown = false
    const by = { who: 'ada', why: 'the network is back' }
    await createOperator({ engine }).retryMessage(dead!.messageId, by)
    await clock.advanceAsync(60_000)
    stop.abort()
    await running
    expect(got).toEqual([{ to: 'ada' }])
  })

  it('starts no task after the engine is closed', async () => {
    const { create, engine, clock, pay, reconciler, heard } = setup()
    const worker = createWorker({ engine, operations: [pay] })
    const running = create({ worker, reconciler: reconciler() }).run(new AbortController().signal)
    await clock.advanceAsync(10_000)
    await engine.close()
    await clock.advanceAsync(2 * HOUR_MS)
    await running
    expect(heard('maintenance_failed')).toEqual([])
  })

  it('does not keep the process alive for a pass that hangs', async () => {
    const { create, clock, heard } = setup()
    const foreground = foregroundTimers(clock)
    const worker = part(() => new Promise(() => {}))
    const stop = new AbortController()
    const running = create({ worker, graceMs: 1_000 }).run(stop.signal)
    await clock.advanceAsync(5_000)
    stop.abort()
    await clock.advanceAsync(1_000)
    await running
    expect(foreground.size).toBe(0)
    await clock.advanceAsync(2 * HOUR_MS)
    expect(heard('maintenance_failed')).toMatchObject([
      { task: 'complete', error: { message: 'the task still runs 1000 ms after shutdown began' } },
    ])
  })

  it('starts no task if its signal has aborted before', async () => {
    const { create, clock } = setup()
    const { counts, parts } = counted(['worker'])
    await create(parts).run(AbortSignal.abort())
    expect(counts).toEqual({ worker: 0 })
    expect(clock.pendingTimers).toBe(0)
  })

  it('completes a lost payment without a request of its client', async () => {
    const { fixture, create, engine, pay, provider, clock, reconciler, record } = setup()
    await lostPayment(fixture)
    provider.answer = async () => ({ kind: 'done', result: { id: 'ch_1', amount: 5 } })
    const stop = new AbortController()
    const worker = createWorker({ engine, operations: [pay] })
    const running = create({ worker, reconciler: reconciler() }).run(stop.signal)
    await clock.advanceAsync(10_000)
    expect((await record()).state).toBe('completed')
    stop.abort()
    await running
    expect(provider.sent).toBe(1)
  })
})

describe('options of createMaintenance', () => {
  it.each([
    [{ worker: {} }, /worker must have runOnce/],
    [{ relay: { runOnce: async () => {}, run: 5 } }, /relay must have runOnce/],
    [{ ledgers: {} }, /ledgers must be an array/],
    [{ every: { sweep: 5 } }, /every has no option "sweep"/],
    [{ every: { sweepMs: 1 } }, /every.sweepMs must be a whole number from 10/],
    [{ abandonedReply: 'text' }, /abandonedReply must be false, or a reply as/],
    [{ abandonedReply: Uint8Array.of(2) }, /abandonedReply must be false, or a reply as/],
    [{ abandonedReply: { status: 99 } }, /createMaintenance.abandonedReply.status/],
    [{ reconcile: {} }, /has no option "reconcile"/],
  ])('createMaintenance rejects %j', (options, message) => {
    const { create } = setup()
    expect(() => create(options as never)).toThrow(message)
  })

  it('createMaintenance rejects two ledgers with the same name', () => {
    const { create, engine } = setup()
    const job = ledgerJob({ engine, name: 'l', ours: () => [], theirs: () => [] })
    expect(() => create({ ledgers: [job, job] })).toThrow(/has the name "l" twice/)
  })
})

/** The pending timers that would keep a process alive. */
function foregroundTimers(clock: FakeClock): ReadonlySet<object> {
  const pending = new Set<object>()
  const after = clock.after.bind(clock)
  clock.after = (ms: number, run: () => void, options?: { readonly background?: boolean }) => {
    const timer = {}
    if (options?.background !== true) pending.add(timer)
    const cancel = after(ms, () => {
      pending.delete(timer)
      run()
    })
    return () => {
      pending.delete(timer)
      cancel()
    }
  }
  return pending
}
