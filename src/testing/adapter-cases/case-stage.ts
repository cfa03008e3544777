/** Shared set-up of the cases: an app with counted runs, and assertions on replies. */
import assert from 'node:assert/strict'
import type { RecordState } from '../../core/record/record.ts'
import type { RecordView, Store } from '../../core/store/store.ts'
import type {
  AdapterFixture,
  CaseHandler,
  CaseOptions,
  CaseReply,
  CaseRoute,
  CaseStatus,
} from './adapter-case.ts'
import { send, TENANT_HEADER, type Received, type Send } from './case-client.ts'

/** The app of a case, or its only route. */
export interface Setup {
  /** Handler of `POST /payments`. */
  readonly handle?: CaseHandler
  /** Options that this route overrides. */
  readonly route?: Partial<CaseOptions>
  /** Replaces the default route. */
  readonly routes?: readonly CaseRoute[]
  /** Options of all routes. By default the tenant is read from `TENANT_HEADER`. */
  readonly options?: Partial<CaseOptions>
  readonly status?: CaseStatus
}

export interface Stage {
  readonly port: number
  /** Number of handler calls. */
  readonly runs: () => number
  readonly send: (request?: Omit<Send, 'port'>) => Promise<Received>
}

export async function stage({ subject, store }: AdapterFixture, setup: Setup): Promise<Stage> {
  const { handle = () => created, route, options = {}, status } = setup
  let runs = 0
  const given = setup.routes ?? [
    { path: '/payments', handle, ...(route === undefined ? {} : { options: route }) },
  ]
  const routes = given.map((one) => ({
    ...one,
    handle: (request: Parameters<CaseHandler>[0]) => {
      runs++
      return one.handle(request)
    },
  }))
  const { port } = await subject.serve({
    options: {
      tenant: (head) => head.header(TENANT_HEADER) ?? '',
      ...(options.engine === undefined ? { store } : {}),
      ...options,
    },
    routes,
    ...(status === undefined ? {} : { status }),
  })
  return { port, runs: () => runs, send: (request) => send({ port, ...request }) }
}

/** Reply of handlers whose reply does not matter to the case. */
export const created: CaseReply = {
  status: 201,
  headers: { 'content-type': 'text/plain' },
  body: 'created',
}

export function jsonReply(value: unknown, status = 200): CaseReply {
  const headers = { 'content-type': 'application/json' }
  return { status, headers, body: JSON.stringify(value) }
}

export const REPLAYED = 'idempotent-replayed'
export const EXPIRES = 'idempotency-expires'

/** Asserts that the reply comes from a run, not from a record. */
export function assertRan(reply: Received, status: number): void {
  assert.equal(reply.status, status, reply.text)
  assert.equal(reply.headers[REPLAYED], undefined)
}

/** Shows only the start of both bodies: a diff of two large bodies takes longer than the case. */
export function assertBytes(actual: Uint8Array, expected: Uint8Array): void {
  if (Buffer.compare(actual, expected) === 0) return
  const [got, wanted] = [actual, expected].map((bytes) => `${bytes.length} bytes: ${shown(bytes)}`)
  assert.fail(`the body is not the same\n  got ${got}\n  not ${wanted}`)
}

const shown = (bytes: Uint8Array): string =>
  JSON.stringify(Buffer.from(bytes.subarray(0, 100)).toString('latin1'))

/** Asserts that this is the recorded reply: same status, same bytes, marked as a replay. */
export function assertReplay(replay: Received, first: Received): void {
  assert.equal(replay.status, first.status, replay.text)
  assertBytes(replay.body, first.body)
  assert.equal(replay.headers['content-type'], first.headers['content-type'])
  assert.equal(replay.headers[REPLAYED], 'true')
}

/** Asserts that the reply is a problem of the `ietf` profile. */
export function assertProblem(
  reply: Received,
  status: number,
  code: `idempotency_${string}`,
): void {
  assert.equal(reply.status, status, reply.text)
  assert.match(reply.headers['content-type'] ?? '', /^application\/problem\+json/)
  const problem = JSON.parse(reply.text) as Record<string, unknown>
  assert.equal(problem['code'], code)
  assert.equal(problem['status'], status)
  for (const name of ['type', 'title', 'detail']) assert.equal(typeof problem[name], 'string')
  assert.match(reply.headers['link'] ?? '', /rel="describedby"/)
  assert.equal(reply.headers[REPLAYED], undefined)
  const needsRetryAfter = status === 409 || status === 429 || status === 503
  assert.equal(/^[1-9]\d*$/.test(reply.headers['retry-after'] ?? ''), needsRetryAfter)
}

export const assertMismatch = (reply: Received): void =>
  assertProblem(reply, 422, 'idempotency_key_reused_with_different_payload')

export const assertInProgress = (reply: Received): void =>
  assertProblem(reply, 409, 'idempotency_key_in_progress')

export const assertUnknown = (reply: Received): void =>
  assertProblem(reply, 409, 'idempotency_outcome_unknown')

/** A promise, and the function that resolves it. */
export function gate<Value = void>(): { passed: Promise<Value>; open: (value: Value) => void } {
  let open!: (value: Value) => void
  const passed = new Promise<Value>((resolve) => {
    open = resolve
  })
  return { passed, open }
}

const STATES: readonly RecordState[] = ['in_progress', 'completed', 'failed_retryable', 'unknown']

/** All records of the store. */
export async function recordsOf(store: Store): Promise<RecordView[]> {
  const found = await Promise.all(STATES.map((state) => store.list({ state, limit: 100 })))
  return found.flat()
}

/** The only record of the store. */
export async function recordOf(store: Store): Promise<RecordView> {
  const [record, ...others] = await recordsOf(store)
  assert.ok(record !== undefined, 'expected a record, found none')
  assert.equal(others.length, 0, 'expected one record, found several')
  return record
}

type Call = 'claim' | 'settle'

/** Wraps a store: each call first runs `before`, which may throw or wait. */
export function watched(
  store: Store,
  before: (call: Call, count: number) => void | Promise<void>,
): Store {
  return new Proxy(store, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name)
      if (typeof value !== 'function') return value
      const method = value.bind(target) as (...args: unknown[]) => unknown
      if (name !== 'claim' && name !== 'settle') return method
      return async (batch: readonly unknown[]) => {
        await before(name, batch.length)
        return method(batch)
      }
    },
  })
}
