import { expect, it } from 'vitest'
import type { NewMessage } from '../../src/core/durable-store.ts'
import { newRecordId, newToken } from '../../src/core/identity.ts'
import {
  bytes,
  claim,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../src/testing/store-cases/store-case.ts'
import { setup } from './sqlite-setup.ts'

const OPERATION = { name: 'pay', version: 1, input: bytes('{}') }

function message(overrides: Partial<NewMessage> = {}): NewMessage {
  return {
    id: newRecordId(0),
    topic: 'receipt',
    key: undefined,
    partition: undefined,
    payload: bytes('payload'),
    delayMs: 0,
    ...overrides,
  }
}

it('commits rows, phase and messages together, and resumes a released operation', async () => {
  const { store, amounts } = setup()
  const { phases, outbox } = store.durable
  const lease = await hold(store)
  const { recordId } = await viewOf(store, lease)
  const advanced = await phases.advance(lease, (tx) => {
    ;(tx as { exec(sql: string): void }).exec('INSERT INTO payment VALUES (5)')
    void outbox.add(tx, message())
    const phase = { kind: 'transaction', name: 'book', number: 1, result: bytes('1') } as const
    return { operation: OPERATION, phase }
  })
  ofKind(advanced, 'advanced')
  expect(amounts()).toEqual([5])
  ofKind(await settle(store, releaseOf(lease)), 'settled')
  const [due] = await phases.due({ operations: [OPERATION], limit: 10 })
  expect(due?.record.recoveryPoint).toBe('book')
  const taken = ofKind(await claim(store, { mode: 'take' }), 'claimed')
  expect(taken.recoveryPoint).toBe('book')
  const end = { kind: 'complete', result: bytes('done'), retentionMs: RETENTION_MS } as const
  ofKind(await phases.record(taken.lease, { end }), 'advanced')
  expect((await phases.load(recordId))?.phases.length).toBe(1)

  const token = newToken()
  const request = { topics: ['receipt'], limit: 10, leaseMs: LEASE_MS, token }
  const [held] = await outbox.claim(request)
  expect(await outbox.claim(request)).toEqual([held])
  const done = { ...held!, kind: 'done', providerId: 'p-1' } as const
  expect(await outbox.settle([done])).toEqual([true])
  expect((await outbox.read(held!.id))?.state).toBe('done')
})

it('concludes a phase, and writes it into an audit that nobody can change', async () => {
  const { store, app } = setup()
  const { phases, desk } = store.durable
  const lease = await hold(store)
  const { recordId } = await viewOf(store, lease)
  const intent = { kind: 'intent', name: 'charge', number: 1, request: bytes('5') } as const
  const phase = { ...intent, downstreamKey: 'down-1' }
  ofKind(await phases.record(lease, { operation: OPERATION, phase }), 'advanced')
  const finding = { kind: 'done', result: bytes('ok'), providerId: 'ch_1' } as const
  const act = { kind: 'conclude', phase: { downstreamKey: 'down-1' }, finding } as const
  const by = { who: 'webhook', why: 'charge.succeeded' }
  expect(ofKind(await desk.act(act, by), 'done').subject).toBe(recordId)
  expect(await desk.act(act, by)).toEqual({ kind: 'already', subject: recordId })
  expect((await desk.audit({ subject: recordId, limit: 10 })).length).toBe(1)
  for (const sql of [
    "UPDATE oncekey_record_audit SET who = 'x'",
    'DELETE FROM oncekey_record_audit',
  ]) {
    expect(() => app.exec(sql)).toThrow(/append-only/)
  }
})
