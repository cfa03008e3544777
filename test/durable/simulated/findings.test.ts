/** Regression tests for faults that the simulation and the count of round trips found. */
import { expect, it } from 'vitest'
import type { Step } from '../../../src/core/store/durable-store.ts'
import { NotExecutedError } from '../../../src/core/errors.ts'
import { createWorker, defineOperation } from '../../../src/durable/index.ts'
import { askable, durableFixture, payment } from '../operations/durable-fixture.ts'
import type { Charge } from '../operations/provider.ts'
import { settled, setup } from '../outbox/relay-fixture.ts'

const MINUTE_MS = 60_000
const NEVER = new Promise<never>(() => undefined)

it('lets a worker query again after a store call without an answer', async () => {
  const { engine, store, clock, record, run, kinds } = durableFixture()
  let failures = 1
  const note = defineOperation({
    name: 'note',
    async run(op) {
      await op.transaction('record', () => 1)
      if (failures-- > 0) throw new Error('not now')
      return { status: 200, body: {} }
    },
  })
  await expect(run(note, undefined)).rejects.toThrow('not now')
  const { phases } = store.durable
  const due = phases.due.bind(phases)
  let unanswered = 1
  phases.due = (query) => (unanswered-- > 0 ? NEVER : due(query))
  const stop = new AbortController()
  const worker = createWorker({ engine, operations: [note] }).run(stop.signal)
  for (let n = 0; n < 20; n++) await clock.advanceAsync(1_000)
  expect((await record(note)).state).toBe('completed')
  expect(kinds()).toContain('store_error')
  stop.abort()
  await worker
})

it('does not let a relay claim a message in a loop if it cannot read it', async () => {
  let reads = 0
  const { clock, add, claim, relay, read } = setup(() => ({
    read: () => {
      reads++
      return Promise.reject(new Error('the replica is gone'))
    },
  }))
  const id = add({})
  // Claimed maxAttempts times by a relay that crashed each time.
  await claim()
  await clock.advanceAsync(30_000)
  const stop = new AbortController()
  const running = relay(() => undefined, { maxAttempts: 1 }).run(stop.signal)
  await settled()
  expect(reads).toBe(1)
  for (let n = 0; n < 20; n++) await clock.advanceAsync(1_000)
  expect(reads).toBeGreaterThan(1)
  expect(reads).toBeLessThan(10)
  stop.abort()
  await running
  // The message is returned without a handler call, so this attempt does not count.
  expect(await read(id)).toMatchObject({ state: 'ready', attempt: 1 })
})

it('applies NotExecutedError to the last send only, not to earlier ones', async () => {
  const { run, record, provider, clock } = durableFixture()
  provider.faults.push('late')
  let sendings = 0
  const { result } = askable(provider)
  const pay = payment({
    result: result!,
    resendWithinMs: MINUTE_MS,
    send: async ({ request, downstreamKey }) => {
      if (++sendings === 2) throw new NotExecutedError('no connection')
      return (await provider.charge(request, downstreamKey)) as Charge
    },
  })
  await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
  await expect(run(pay, { amount: 1 })).rejects.toThrow('no connection')
  // The first send arrives late, and the provider forgets its key after its time.
  provider.arrive()
  provider.forgetKeys()
  await clock.advanceAsync(MINUTE_MS)
  await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
  expect((await record(pay)).state).toBe('unknown')
  expect(sendings).toBe(2)
  expect(provider.ledger).toHaveLength(1)
})

it('sends the operation with its first step only, and not if it is on record', async () => {
  const { run, provider, store } = durableFixture()
  const { phases } = store.durable
  const record = phases.record.bind(phases)
  const advance = phases.advance.bind(phases)
  const steps: string[] = []
  const keep = (step: Step): Step => {
    steps.push(`${step.phase?.kind ?? step.end?.kind} ${step.operation?.name ?? 'alone'}`)
    return step
  }
  phases.record = (lease, step) => record(lease, keep(step))
  phases.advance = (lease, work) => advance(lease, (tx) => keep(work(tx) as Step))
  provider.faults.push('error before effect')
  const { send, result } = askable(provider)
  const pay = payment({ send, result: result!, resendWithinMs: MINUTE_MS })
  await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
  expect(steps).toEqual(['transaction payments.create', 'intent alone'])
  steps.length = 0
  expect(await run(pay, { amount: 1 })).toMatchObject({ status: 201 })
  expect(steps).toEqual(['intent alone', 'result alone', 'complete alone'])
})
