/** An API that takes payments under a key, behind a proxy that breaks connections. */
import { randomUUID } from 'node:crypto'
import type { RequestListener, ServerResponse } from 'node:http'
import express from 'express'
import { onTestFinished } from 'vitest'
import { idempotency } from '../../src/adapters/express/index.ts'
import { withIdempotency } from '../../src/adapters/node/index.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Engine } from '../../src/core/engine/engine-contract.ts'
import { StoreFailedError } from '../../src/core/errors.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import type { Store } from '../../src/core/store/store.ts'
import { singleTenant, type GuardOptions } from '../../src/http/guard/guard-options.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { gate, serve, wrapStore, type TestServer } from '../adapters/run-express.ts'
import { startTcpProxy, type TcpProxy } from '../servers/tcp-proxy.ts'

export type ApiOptions = Omit<GuardOptions<unknown>, 'tenant' | 'store' | 'engine'>

/** Answers a payment. Its body is unread. */
export type Work = (res: ServerResponse, run: number) => unknown

type Mount = (work: (res: ServerResponse) => unknown, options: Guarded) => RequestListener
type Guarded = ApiOptions & { readonly engine: Engine; readonly tenant: () => string }

/** The adapters of the servers. */
export const SERVERS: readonly (readonly [name: string, mount: Mount])[] = [
  [
    'express',
    (work, options) => {
      const app = express()
      app.post('/payments', idempotency(options), (_req, res) => work(res))
      app.post('/v1/payment_intents', idempotency(options), (_req, res) => work(res))
      return app as RequestListener
    },
  ],
  ['node:http', (work, options) => withIdempotency((_req, res) => work(res), options)],
]

export interface PaymentsApi {
  readonly server: TestServer
  readonly engine: Engine
  /** The URL of the proxy, which clients call. */
  readonly url: string
  readonly line: TcpProxy
  /** The number of runs that have started. */
  runs(): number
  /** The statuses of the replies that were sent, in order. */
  readonly statuses: readonly number[]
  /** The values of `Idempotency-Key`, request by request. */
  readonly keys: readonly (string | undefined)[]
  /** The store calls that currently fail. */
  readonly broken: Set<'claim' | 'settle'>
  /** Resolves when a reply with this status was sent. */
  left(status: number): Promise<void>
  /** Resolves when the engine has emitted this event. */
  heard(kind: EngineEvent['kind']): Promise<void>
  /** Resolves when this many requests have arrived. */
  arrived(count: number): Promise<void>
  /** Makes the next run call `during` and wait for it before it replies. */
  holdNext(during: () => unknown): void
}

/** A payment with unique bytes, which identify the run that replied. */
export function replyWithPayment(res: ServerResponse, run: number): void {
  res.statusCode = 201
  res.setHeader('Content-Type', 'application/json')
  res.setHeader('Location', `/payments/${run}`)
  res.end(JSON.stringify({ id: `pi_${randomUUID()}`, object: 'payment_intent', run }))
}

export interface ApiSetup {
  readonly mount?: Mount
  readonly options?: ApiOptions
  readonly work?: Work
}

export async function servePayments(setup: ApiSetup = {}): Promise<PaymentsApi> {
  const { mount = SERVERS[0]![1], options = {}, work = replyWithPayment } = setup
  const broken = new Set<'claim' | 'settle'>()
  const log = new Log()
  const engine = createEngine({
    store: breakable(memoryStore(), broken),
    onEvent: ({ kind }) => log.onEvent(kind),
  })
  let runs = 0
  let during: (() => unknown) | undefined
  const guarded = mount(
    async (res) => {
      runs++
      const run = runs
      const held = during
      during = undefined
      await held?.()
      return work(res, run)
    },
    { ...options, engine, tenant: singleTenant },
  )
  const server = await serve((req, res) => {
    log.onRequest(req.headers['idempotency-key']?.toString())
    res.on('finish', () => log.onReply(res.statusCode))
    guarded(req, res)
  })
  const line = await startTcpProxy({ host: '127.0.0.1', port: server.port })
  onTestFinished(async () => {
    await line.close()
    await engine.close()
  })
  return {
    server,
    engine,
    line,
    url: `http://127.0.0.1:${line.port}/payments`,
    runs: () => runs,
    statuses: log.statuses,
    keys: log.keys,
    broken,
    left: (status) => log.until(() => log.statuses.includes(status)),
    heard: (kind) => log.until(() => log.events.includes(kind)),
    arrived: (count) => log.until(() => log.keys.length >= count),
    holdNext: (step) => {
      during = step
    },
  }
}

/** Log of requests and replies, for tests that wait for an entry. */
class Log {
  readonly statuses: number[] = []
  readonly keys: (string | undefined)[] = []
  readonly events: EngineEvent['kind'][] = []
  #waiting: { readonly isThere: () => boolean; readonly tell: () => void }[] = []

  onRequest(key: string | undefined): void {
    this.keys.push(key)
    this.#look()
  }

  onEvent(kind: EngineEvent['kind']): void {
    this.events.push(kind)
    this.#look()
  }

  onReply(status: number): void {
    this.statuses.push(status)
    this.#look()
  }

  until(isThere: () => boolean): Promise<void> {
    const { passed, open } = gate()
    this.#waiting.push({ isThere, tell: open })
    this.#look()
    return passed
  }

  #look(): void {
    const there = this.#waiting.filter(({ isThere }) => isThere())
    this.#waiting = this.#waiting.filter((one) => !there.includes(one))
    for (const { tell } of there) tell()
  }
}

function breakable(store: Store, broken: ReadonlySet<string>): Store {
  const check = (call: string) => {
    if (!broken.has(call)) return
    const cause = new Error('it is down')
    // Then the engine does not search for the claim afterwards.
    const wroteNothing = true
    throw new StoreFailedError({ store: store.name, operation: call, cause, wroteNothing })
  }
  return wrapStore(store, {
    claim: async (requests) => {
      check('claim')
      return store.claim(requests)
    },
    settle: async (settlements) => {
      check('settle')
      return store.settle(settlements)
    },
  })
}
