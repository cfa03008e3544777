import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { downstreamKeyOf, idSeedOf } from '../../../src/core/record/identity.ts'
import type { RecordView } from '../../../src/core/store/store.ts'
import { operationPolicy } from '../../../src/durable/index.ts'
import type { Effect, Finding } from '../../../src/durable/operations/operation-contract.ts'
import { defineOperation } from '../../../src/durable/operations/operation.ts'
import { createReconciler } from '../../../src/durable/reconciliation/reconciler.ts'
import type { ReconcilerOptions } from '../../../src/durable/reconciliation/reconciler-options.ts'
import type { SqliteStoreOptions } from '../../../src/stores/sqlite/index.ts'
import { setupFile } from '../../stores/sqlite/setup.ts'

export const PROVEN_AFTER_MS = 600_000
export const BY = { who: 'ada', why: 'ticket 7' }

export const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)

export interface Charge {
  readonly id: string
  readonly amount: number
}

type ChargeEffect = Effect<{ amount: number }, Charge>

export type OperatorFixture = ReturnType<typeof operatorFixture>

/** A payment operation with one charge, and a provider whose answers the test sets. */
export function operatorFixture({
  effect = {},
  engineOptions = {},
  storeOptions = {},
}: {
  effect?: Partial<ChargeEffect>
  engineOptions?: Partial<EngineOptions>
  storeOptions?: Partial<SqliteStoreOptions>
} = {}) {
  const { clock, open } = setupFile()
  const store = open(storeOptions)
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    clock,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => void events.push(event),
    ...engineOptions,
  })
  const provider = {
    sent: 0,
    asked: 0,
    send: async (): Promise<Charge> => {
      throw Object.assign(new Error('socket hang up'), { code: 'ECONNRESET' })
    },
    answer: async (_signal: AbortSignal): Promise<Finding<Charge>> => ({ kind: 'pending' }),
  }
  const charge: ChargeEffect = {
    send: () => {
      provider.sent++
      return provider.send()
    },
    reconcile: ({ signal }) => {
      provider.asked++
      return provider.answer(signal)
    },
    notFoundIsFinalAfterMs: PROVEN_AFTER_MS,
    providerId: ({ id }) => id,
    ...effect,
  }
  const pay = defineOperation({
    name: 'pay',
    effects: { charge },
    async run(op, { amount }: { amount: number }) {
      const { id } = await op.external('charge', { amount })
      return { status: 201, body: { id } }
    },
  })
  const request = (key: string) => ({
    scope: { tenant: 'acme', operation: 'pay' },
    key,
    fingerprint: 'f',
    policy: operationPolicy(engine),
  })
  const read = (key = 'k') => engine.read({ scope: { tenant: 'acme', operation: 'pay' }, key })
  return {
    clock,
    store,
    engine,
    events,
    provider,
    pay,
    operatorStore: store.durable.operator,
    run: (key = 'k', amount = 5) => engine.run(request(key), pay.work({ amount })),
    record: async (key = 'k') => existing(await read(key)),
    /** The events of one kind. */
    heard: <Kind extends EngineEvent['kind']>(kind: Kind) =>
      events.filter((event) => event.kind === kind) as Extract<EngineEvent, { kind: Kind }>[],
    reconciler: (options: Partial<ReconcilerOptions> = {}) =>
      createReconciler({ engine, operations: [pay], ...options }),
    audit: () => store.durable.operator.audit({ limit: 1000 }),
  }
}

function existing(record: RecordView | undefined): RecordView {
  if (record === undefined) throw new Error('there is no record')
  return record
}

/** A payment that was sent and whose answer was lost: `unknown`, and due for reconciliation. */
export async function lostPayment(fixture: OperatorFixture, key = 'k') {
  const { provider, engine, run, record, clock } = fixture
  const [{ answer }, asked] = [{ ...provider }, provider.asked]
  provider.answer = async () => ({ kind: 'pending' })
  const ended = await run(key).then(
    () => 'ended',
    () => 'lost',
  )
  if (ended !== 'lost') throw new Error('the payment did not become unknown')
  provider.answer = answer
  provider.asked = asked
  const { recordId, attempt, identity } = await record(key)
  const [intended] = (await engine.store.durable!.phases.load(recordId))!.phases
  // The reconciler asks about a lost answer after one second.
  await clock.advanceAsync(1_000)
  return {
    recordId,
    attempt,
    identity,
    sentAt: intended!.sentAt,
    downstreamKey: downstreamKeyOf(idSeedOf(identity), 'charge'),
  }
}

/** Runs a handler without an operation whose outcome is unknown. */
export async function lostPlain({ engine }: OperatorFixture, key = 'plain') {
  const scope = { tenant: 'acme', operation: 'POST /orders' }
  const outcome = await engine.run({ scope, key, fingerprint: 'f' }, () => ({
    kind: 'fail',
    result: bytes('x'),
    error: Object.assign(new Error('reset'), { code: 'ECONNRESET' }),
  }))
  if (outcome.kind !== 'doubted') throw new Error(`it ended as ${outcome.kind}`)
  return { recordId: outcome.recordId, scope, key }
}

export async function phasesOf({ store }: OperatorFixture, recordId: string) {
  return (await store.durable.phases.load(recordId))?.phases ?? []
}
