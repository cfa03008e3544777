/** What most cases need: an app, somebody who counts, and sentences about what came back. */
import assert from 'node:assert/strict'
import type { RecordState } from '../../core/record.ts'
import type { RecordView, Store } from '../../core/store.ts'
import type {
  AdapterFixture,
  CaseHandler,
  CaseOptions,
  CaseReply,
  CaseRoute,
  CaseStatus,
} from './adapter-case.ts'
import { send, TENANT_HEADER, type Received, type Send } from './case-client.ts'

/** Of the app; or of its only route, for what routes may say. */
export interface Setup {
  /** Of `POST /payments`. */
  readonly handle?: CaseHandler
  /** What this route says differently. */
  readonly route?: Partial<CaseOptions>
  /** In place of that route. */
  readonly routes?: readonly CaseRoute[]
  /** Of the whole app. The tenant is that of the header, unless they say otherwise. */
  readonly options?: Partial<CaseOptions>
  readonly status?: CaseStatus
}

export interface Stage {
  readonly port: number
  /** How often a handler was entered. */
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

/** A reply for handlers whose reply does not matter. */
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

/** The reply of a run, not of a record. */
export function assertRan(reply: Received, status: number): void {
  assert.equal(reply.status, status, reply.text)
  assert.equal(reply.headers[REPLAYED], undefined)
}

/** The message stays short: showing how two large bodies differ takes longer than the case. */
export function assertBytes(actual: Uint8Array, expected: Uint8Array): void {
  if (Buffer.compare(actual, expected) === 0) return
  const [got, wanted] = [actual, expected].map((bytes) => `${bytes.length} bytes: ${shown(bytes)}`)
  assert.fail(`the body is not the same\n  got ${got}\n  not ${wanted}`)
}

const shown = (bytes: Uint8Array): string =>
  JSON.stringify(Buffer.from(bytes.subarray(0, 100)).toString('latin1'))

/** The recorded reply: same status, same bytes, and marked. */
export function assertReplay(replay: Received, first: Received): void {
  assert.equal(replay.status, first.status, replay.text)
  assertBytes(replay.body, first.body)
  assert.equal(replay.headers['content-type'], first.headers['content-type'])
  assert.equal(replay.headers[REPLAYED], 'true')
}

/** One of our own answers, in the words of the `ietf` profile. */
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
  const needsRetryAfter = status === 409 || status === 503
  assert.equal(/^[1-9]\d*$/.test(reply.headers['retry-after'] ?? ''), needsRetryAfter)
}

export const assertMismatch = (reply: Received): void =>
  assertProblem(reply, 422, 'idempotency_key_reused_with_different_payload')

export const assertInProgress = (reply: Received): void =>
  assertProblem(reply, 409, 'idempotency_key_in_progress')

export const assertUnknown = (reply: Received): void =>
  assertProblem(reply, 409, 'idempotency_outcome_unknown')

/** Something that has not happened yet, and can be waited for. */
export function gate<Value = void>(): { passed: Promise<Value>; open: (value: Value) => void } {
  let open!: (value: Value) => void
  const passed = new Promise<Value>((resolve) => {
    open = resolve
  })
  return { passed, open }
}

const STATES: readonly RecordState[] = ['in_progress', 'completed', 'failed_retryable', 'unknown']

/** Every record there is. */
export async function recordsOf(store: Store): Promise<RecordView[]> {
  const found = await Promise.all(STATES.map((state) => store.list({ state, limit: 100 })))
  return found.flat()
}

/** The only record there is. */
export async function recordOf(store: Store): Promise<RecordView> {
  const [record, ...others] = await recordsOf(store)
  assert.ok(record !== undefined, 'nothing was recorded')
  assert.equal(others.length, 0, 'more than one record')
  return record
}

type Call = 'claim' | 'settle'

/** The same store, but each call first passes `before`: it may throw, wait, or look on. */
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
