import assert from 'node:assert/strict'
import type {
  DurableStore,
  HeldMessage,
  MessageClaim,
  MessageSettlement,
  MessageView,
  NewMessage,
  NewOperation,
  PhaseStep,
  Step,
  StoredOperation,
  StoredPhase,
} from '../../core/store/durable-store.ts'
import type { Act, ActOutcome, AuditEntry } from '../../core/store/operator-store.ts'
import { newRecordId, newToken } from '../../core/record/identity.ts'
import type { ClaimRequest, Lease, RecordView, Store } from '../../core/store/store.ts'
import type { FakeClock } from '../fake-clock.ts'
import { bytes, hold, LEASE_MS, ofKind, only, viewOf } from '../store-cases/store-case.ts'

/** A store with `durable`, and one more table in its database that holds rows of the caller. */
export interface DurableFixture {
  /** An empty store. Create a new one for every case. */
  readonly store: Store & { readonly durable: DurableStore }
  /** The clock that the store was created with. */
  readonly clock: FakeClock

  /**
   * Runs `work` in a transaction of the caller, on a connection that the store does not manage.
   * Commits when `work` returns; rolls back and throws the same error when it throws. Several calls
   * may overlap; if the database allows a single writer, the next call waits.
   */
  readonly transact: (work: (tx: unknown) => void | Promise<void>) => Promise<void>

  /** Writes a row into the caller's table, in a transaction of the caller or of the store. */
  readonly note: (tx: unknown, text: string) => Promise<void> | void

  /** Returns the committed rows of the caller's table, in any order. */
  readonly notes: () => Promise<string[]>

  /**
   * Ends the transaction with a plain SQL COMMIT. Work must not do this; a case checks the error.
   */
  readonly commitInside: (tx: unknown) => Promise<void> | void
}

export interface DurableCase {
  /** A whole statement about behaviour. Skip a case by this name. */
  readonly name: string
  /** Run the case only on stores that have this method. */
  readonly needs?: 'history'
  readonly run: (fixture: DurableFixture) => Promise<void>
}

export const OPERATION = { name: 'pay', version: 1 } as const

export function operationOf(overrides: Partial<NewOperation> = {}): NewOperation {
  return { ...OPERATION, input: bytes('input'), ...overrides }
}

export interface StartedOperation {
  readonly lease: Lease
  readonly recordId: string
}

/** Holds a key and records an operation for it, with a first phase if `step` has one. */
export async function begin(
  { store }: DurableFixture,
  overrides: Partial<ClaimRequest> = {},
  step: Step = {},
): Promise<StartedOperation> {
  const lease = await hold(store, { onLapse: 'resume', ...overrides })
  const { recordId } = await viewOf(store, lease)
  const outcome = await store.durable.phases.record(lease, { operation: operationOf(), ...step })
  ofKind(outcome, 'advanced')
  return { lease, recordId }
}

type StepOf<Kind extends PhaseStep['kind']> = Extract<PhaseStep, { kind: Kind }>

export function transactionOf(
  overrides: Partial<StepOf<'transaction'>> = {},
): StepOf<'transaction'> {
  return { kind: 'transaction', name: 'book', number: 1, result: bytes('booked'), ...overrides }
}

export function intentOf(overrides: Partial<StepOf<'intent'>> = {}): StepOf<'intent'> {
  const request = bytes('request')
  const rest = { request, downstreamKey: 'downstream-1' }
  return { kind: 'intent', name: 'charge', number: 1, ...rest, ...overrides }
}

export function resultOf(overrides: Partial<StepOf<'result'>> = {}): StepOf<'result'> {
  const rest = { result: bytes('charged'), downstreamKey: 'downstream-1', providerId: 'ch_1' }
  return { kind: 'result', name: 'charge', number: 1, ...rest, ...overrides }
}

export async function operationIn(
  { store }: DurableFixture,
  recordId: string,
): Promise<StoredOperation> {
  const operation = await store.durable.phases.load(recordId)
  assert.ok(operation !== undefined, 'expected an operation, found none')
  return operation
}

/** Returns the only phase of an operation. */
export async function phaseIn(fixture: DurableFixture, recordId: string): Promise<StoredPhase> {
  return only((await operationIn(fixture, recordId)).phases)
}

/** Converts bytes to text, because drivers return different byte types. */
export function withTextBytes(phase: StoredPhase): unknown {
  return { ...phase, request: textOf(phase.request), result: textOf(phase.result) }
}

export function textOf(bytes: Uint8Array | undefined): string | undefined {
  return bytes === undefined ? undefined : new TextDecoder().decode(bytes)
}

export async function recordOf({ store }: DurableFixture, recordId: string): Promise<RecordView> {
  const view = await store.read({ recordId })
  assert.ok(view !== undefined, 'expected a record, found none')
  return view
}

/** The keys of the due operations, in order. */
export async function dueKeys(
  { store }: DurableFixture,
  query: Partial<Parameters<DurableStore['phases']['due']>[0]> = {},
): Promise<string[]> {
  const due = await store.durable.phases.due({ operations: [OPERATION], limit: 100, ...query })
  return due.map(({ record }) => record.key)
}

export const BY = { who: 'ops@example.com', why: 'the customer called' } as const

export function act({ store }: DurableFixture, what: Act): Promise<ActOutcome> {
  return store.durable.operator.act(what, BY)
}

/** The audit entries of one subject, newest first. */
export function auditOf({ store }: DurableFixture, subject: string): Promise<AuditEntry[]> {
  return store.durable.operator.audit({ subject, limit: 100 })
}

/** Asserts that a subject has exactly one audit entry, with `BY` and the given JSON detail. */
export async function assertAudited(
  fixture: DurableFixture,
  subject: string,
  expected: { readonly act: AuditEntry['act']; readonly detail: object },
): Promise<void> {
  const { detail, ...entry } = only(await auditOf(fixture, subject))
  const at = new Date(fixture.clock.nowMs())
  assert.deepEqual(entry, { at, act: expected.act, subject, ...BY })
  assert.deepEqual(JSON.parse(detail), expected.detail)
}

export async function assertNoAudit({ store }: DurableFixture): Promise<void> {
  assert.deepEqual(await store.durable.operator.audit({ limit: 100 }), [])
}

export function messageOf(overrides: Partial<NewMessage> = {}): NewMessage {
  return {
    id: newRecordId(0),
    topic: 'receipts',
    key: undefined,
    partition: undefined,
    payload: bytes('payload'),
    delayMs: 0,
    ...overrides,
  }
}

/** Adds messages in one transaction of the caller. Returns their ids. */
export async function add(
  { store, transact }: DurableFixture,
  ...messages: readonly Partial<NewMessage>[]
): Promise<string[]> {
  const added = messages.map(messageOf)
  await transact(async (tx) => {
    for (const message of added) await store.durable.outbox.add(tx, message)
  })
  return added.map(({ id }) => id)
}

export function claimMessages(
  { store }: DurableFixture,
  overrides: Partial<MessageClaim> = {},
): Promise<HeldMessage[]> {
  return store.durable.outbox.claim({
    topics: ['receipts'],
    limit: 100,
    leaseMs: LEASE_MS,
    token: newToken(),
    ...overrides,
  })
}

/** Claims due messages and returns their ids in order. */
export async function takeIds(
  fixture: DurableFixture,
  overrides: Partial<MessageClaim> = {},
): Promise<string[]> {
  return (await claimMessages(fixture, overrides)).map(({ id }) => id)
}

/** Claims the only message that is due. */
export async function takeOne(
  fixture: DurableFixture,
  overrides: Partial<MessageClaim> = {},
): Promise<HeldMessage> {
  return only(await claimMessages(fixture, overrides))
}

type SettlementFields = MessageSettlement extends infer One
  ? One extends MessageSettlement
    ? Omit<One, 'id' | 'token'>
    : never
  : never

/** Settles a message under the lease of its claim. */
export async function settleMessage(
  { store }: DurableFixture,
  { id, token }: { readonly id: string; readonly token: string },
  settled: SettlementFields,
): Promise<boolean> {
  const settlement = { id, token, ...settled } as MessageSettlement
  return only(await store.durable.outbox.settle([settlement]))
}

export const DONE = { kind: 'done', providerId: undefined } as const

export function retryOf(error = 'no route to host', delayMs = 0) {
  return { kind: 'retry', error, delayMs } as const
}

export function deadOf(blocks: boolean, error = 'no such address') {
  return { kind: 'dead', error, blocks } as const
}

export async function messageIn({ store }: DurableFixture, id: string): Promise<MessageView> {
  const view = await store.durable.outbox.read(id)
  assert.ok(view !== undefined, 'expected a message, found none')
  return view
}

export async function stateOf(fixture: DurableFixture, id: string): Promise<string> {
  return (await messageIn(fixture, id)).state
}
