import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { RecordView } from '../../../src/core/store/store.ts'
import { operationPolicy, type Operation } from '../../../src/durable/index.ts'
import type { Effect } from '../../../src/durable/operations/operation-contract.ts'
import {
  defineOperation,
  type OperationOptions,
} from '../../../src/durable/operations/operation.ts'
import type { Schema } from '../../../src/durable/operations/schema.ts'
import { openReply } from '../../../src/http/reply/reply-encryption.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { Provider, type Charge } from './provider.ts'

export type DurableFixture = ReturnType<typeof durableFixture>

export interface Payment {
  readonly amount: number
}

/** An engine on a SQLite file with a fake clock and a table for business rows. */
export function durableFixture(options: Partial<EngineOptions> = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-durable-'))
  const clock = new FakeClock()
  const path = join(folder, 'test.db')
  const store = sqliteStore({ path, clock })
  onTestFinished(async () => {
    await store.close()
    rmSync(folder, { recursive: true })
  })
  const events: EngineEvent[] = []
  const makeEngine = (changes: Partial<EngineOptions> = {}) =>
    createEngine({
      store,
      clock,
      sweepEveryMs: 0,
      reapEveryMs: 0,
      onEvent: (event) => events.push(event),
      ...options,
      ...changes,
    })
  const engine = makeEngine()
  const provider = new Provider()
  return {
    clock,
    store,
    path,
    engine,
    makeEngine,
    events,
    provider,
    kinds: () => events.map(({ kind }) => kind),
    /** Runs an operation as a request with this key does, and returns its reply. */
    run: async <Input>(one: Operation<Input>, input: Input, key = 'k') => {
      const scope = { tenant: 'acme', operation: one.name }
      const policy = operationPolicy(engine)
      const request = { scope, key, fingerprint: 'f', policy }
      const outcome = await engine.run(request, one.work(input))
      if (outcome.kind !== 'ran' && outcome.kind !== 'replayed') return { kind: outcome.kind }
      return { kind: outcome.kind, ...(await replyOf(outcome)) }
    },
    record: async (one: { readonly name: string }, key = 'k'): Promise<RecordView> => {
      const scope = { tenant: 'acme', operation: one.name }
      const record = await engine.read({ scope, key })
      if (record === undefined) throw new Error(`no record under "${key}"`)
      return record
    },
  }
}

/** The reply of a record or of the outcome of a run. */
export async function replyOf({
  identity,
  recordId,
  result,
}: Pick<RecordView, 'identity' | 'recordId' | 'result'>): Promise<{
  status: number
  body: unknown
}> {
  const record = { identity, recordId, tenant: 'acme', operation: '' }
  const opened = await openReply(result!, record, {
    encryption: undefined,
    requireEncryption: false,
  })
  if (opened.kind === 'unreadable') throw new Error(opened.detail)
  const { status, body } = opened.reply
  return { status, body: JSON.parse(new TextDecoder().decode(body)) as unknown }
}

type ChargeEffect = Effect<Payment, Charge>

/** Schema of an answer of the provider. */
export const chargeSchema: Schema<Charge> = {
  '~standard': {
    version: 1,
    vendor: 'test',
    validate: (value) =>
      typeof value === 'object' && value !== null && 'id' in value
        ? { value: value as Charge }
        : { issues: [{ message: 'is no charge' }] },
  },
}

/** A charge effect with reconcile. */
export function askable(provider: Provider): ChargeEffect {
  return {
    send: async ({ request, downstreamKey }) =>
      (await provider.charge(request, downstreamKey)) as Charge,
    reconcile: async ({ downstreamKey }) => {
      const charge = await provider.query(downstreamKey)
      return charge === undefined ? { kind: 'not_found' } : { kind: 'done', result: charge }
    },
    notFoundIsFinalAfterMs: 60_000,
    result: chargeSchema,
    providerId: (charge) => charge.id,
  }
}

/** The payment with three phases: record, charge, book. It writes to the table `entry`. */
export function payment(
  charge: ChargeEffect,
  changes: Partial<OperationOptions<Payment, { charge: ChargeEffect }>> = {},
): Operation<Payment> {
  return defineOperation({
    name: 'payments.create',
    effects: { charge },
    async run(op, { amount }) {
      const id = await op.transaction('record', (tx: SqliteTransaction) => {
        tx.exec('CREATE TABLE IF NOT EXISTS entry (id TEXT, what TEXT, amount INT)')
        tx.prepare('INSERT INTO entry VALUES (?, ?, ?)').run(op.recordId, 'recorded', amount)
        return op.deterministicId('payment')
      })
      const { id: chargeId, status } = await op.external('charge', { amount })
      return op.finish('book', (tx: SqliteTransaction) => {
        tx.prepare('INSERT INTO entry VALUES (?, ?, ?)').run(op.recordId, status, amount)
        return { status: status === 'succeeded' ? 201 : 402, body: { id, chargeId, status } }
      })
    },
    ...changes,
  })
}
