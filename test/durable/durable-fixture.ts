import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { createEngine, type EngineOptions } from '../../src/core/engine.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import type { RecordView } from '../../src/core/store.ts'
import { operationPolicy, type Operation } from '../../src/durable/index.ts'
import type { Effect } from '../../src/durable/operation-contract.ts'
import { operation, type OperationOptions } from '../../src/durable/operation.ts'
import type { Schema } from '../../src/durable/schema.ts'
import { openReply } from '../../src/http/reply-encryption.ts'
import { sqliteStore, type SqliteTransaction } from '../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { Provider, type Charge } from './provider.ts'

export type DurableFixture = ReturnType<typeof durableFixture>

export interface Payment {
  readonly amount: number
}

/** An engine on a SQLite file under a fake clock, with a table for business rows. */
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
    /** Runs an operation as a request with this key would, and gives its reply. */
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

/** The reply that a record, or the outcome of a run, holds. */
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

/** What an answer of the provider must look like. */
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

/** A charge that can be asked for. */
export function askable(provider: Provider): ChargeEffect {
  return {
    send: async ({ request, downstreamKey }) =>
      (await provider.charge(request, downstreamKey)) as Charge,
    reconcile: async ({ downstreamKey }) => {
      const charge = await provider.query(downstreamKey)
      return charge === undefined ? { kind: 'not_found' } : { kind: 'done', result: charge }
    },
    provenAfterMs: 60_000,
    result: chargeSchema,
    providerId: (charge) => charge.id,
  }
}

/** The three-phase payment: record, charge, book. Its rows are in the table `entry`. */
export function payment(
  charge: ChargeEffect,
  changes: Partial<OperationOptions<Payment, { charge: ChargeEffect }>> = {},
): Operation<Payment> {
  return operation({
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
