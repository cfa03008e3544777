/** Express servers of both major versions on the loopback, and a client that shows raw replies. */
import http from 'node:http'
import { createRequire } from 'node:module'
import net, { type AddressInfo } from 'node:net'
import express, {
  type NextFunction,
  type Request,
  type RequestHandler,
  type Response,
} from 'express'
import { onTestFinished } from 'vitest'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import {
  idempotency,
  type IdempotencyOptions,
  type IdempotencyMiddleware,
} from '../../src/adapters/express/index.ts'
import type { Store } from '../../src/core/store/store.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'

export type ExpressModule = typeof express

/** Every test runs on both. The types are of Express 5; the parts in use are the same in 4. */
export const EXPRESSES: readonly (readonly [name: string, express: ExpressModule])[] = [
  ['express 5', express],
  ['express 4', createRequire(import.meta.url)('express4') as ExpressModule],
]

export interface Reply {
  readonly status: number
  readonly message: string
  /** By lower-case name. Several lines of one header stay separate. */
  readonly headers: ReadonlyMap<string, readonly string[]>
  readonly body: Buffer
}

export interface Send {
  readonly method?: string
  readonly path?: string
  readonly key?: string
  readonly headers?: http.OutgoingHttpHeaders
  /** An object is sent as JSON; `chunks` are sent with chunked encoding. */
  readonly json?: unknown
  readonly body?: string | Uint8Array
  readonly chunks?: readonly (string | Uint8Array)[]
  readonly agent?: http.Agent
}

export interface TestServer {
  readonly port: number
  readonly server: http.Server
  send(options?: Send): Promise<Reply>
  /** Sends a request without waiting for the reply, on a connection that a test can cut. */
  connect(options?: Send): Promise<Client>
}

export async function serve(app: http.RequestListener): Promise<TestServer> {
  const server = http.createServer(app)
  const agent = new http.Agent({ keepAlive: true })
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve)
  })
  onTestFinished(async () => {
    agent.destroy()
    const closed = new Promise((resolve) => {
      server.close(resolve)
    })
    server.closeAllConnections()
    await closed
  })
  const { port } = server.address() as AddressInfo
  return {
    port,
    server,
    send: (options = {}) => send(port, { agent, ...options }),
    connect: (options = {}) => Client.open(port, options),
  }
}

function send(port: number, options: Send): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const { method = 'POST', path = '/', agent } = options
    const headers = headersOf(options)
    const request = http.request({ host: '127.0.0.1', port, method, path, headers, agent })
    request.on('error', reject)
    request.on('response', (response) => {
      const chunks: Buffer[] = []
      response.on('data', (chunk: Buffer) => chunks.push(chunk))
      response.on('error', reject)
      response.on('end', () => {
        resolve({
          status: response.statusCode!,
          message: response.statusMessage!,
          headers: linesOf(response.rawHeaders),
          body: Buffer.concat(chunks),
        })
      })
    })
    for (const chunk of options.chunks ?? []) request.write(chunk)
    request.end(bodyOf(options))
  })
}

function headersOf({ key, json, headers }: Send): http.OutgoingHttpHeaders {
  return {
    ...(key === undefined ? {} : { 'Idempotency-Key': key }),
    ...(json === undefined ? {} : { 'Content-Type': 'application/json' }),
    ...headers,
  }
}

function bodyOf({ json, body }: Send): string | Uint8Array | undefined {
  return json === undefined ? body : JSON.stringify(json)
}

function linesOf(rawHeaders: readonly string[]): Map<string, string[]> {
  const lines = new Map<string, string[]>()
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const name = rawHeaders[i]!.toLowerCase()
    lines.set(name, [...(lines.get(name) ?? []), rawHeaders[i + 1]!])
  }
  return lines
}

/** The lines of a header, joined, or `undefined`. */
export const header = (reply: Reply, name: string): string | undefined =>
  reply.headers.get(name)?.join(', ')

export const text = (reply: Reply): string => reply.body.toString()

export const json = (reply: Reply): Record<string, unknown> =>
  JSON.parse(text(reply)) as Record<string, unknown>

/** The status and code of a problem. */
export const problemOf = (reply: Reply): [status: number, code: unknown] => {
  const body = json(reply)
  const error = body['error'] as { code?: unknown } | undefined
  return [reply.status, body['code'] ?? error?.code]
}

/** A raw connection. It sends exactly the given request, and a test can cut it at any time. */
export class Client {
  readonly socket: net.Socket
  #received = Buffer.alloc(0)
  #onData: () => void = () => undefined

  static async open(port: number, options: Send): Promise<Client> {
    const client = await Client.connect(port)
    client.socket.write(rawRequest(options))
    return client
  }

  static connect(port: number): Promise<Client> {
    return new Promise((resolve, reject) => {
      const socket = net.connect({ port, host: '127.0.0.1' })
      onTestFinished(() => {
        socket.destroy()
      })
      socket.once('error', reject)
      socket.once('connect', () => resolve(new Client(socket)))
    })
  }

  private constructor(socket: net.Socket) {
    this.socket = socket
    socket.on('data', (chunk: Buffer) => {
      this.#received = Buffer.concat([this.#received, chunk])
      this.#onData()
    })
    // In some tests the server cuts the connection.
    socket.on('error', () => undefined)
    socket.on('close', () => this.#onData())
  }

  get received(): string {
    return this.#received.toString('latin1')
  }

  get isClosed(): boolean {
    return this.socket.closed || this.socket.destroyed
  }

  /** Resolves when the received text matches, or the connection is closed. */
  until(pattern: RegExp): Promise<string> {
    return new Promise((resolve) => {
      this.#onData = () => {
        if (pattern.test(this.received) || this.socket.closed) resolve(this.received)
      }
      this.#onData()
    })
  }

  closed(): Promise<string> {
    return this.until(/(?!)/)
  }

  /** Resets the connection, as a crashed client does. */
  cut(): void {
    this.socket.resetAndDestroy()
  }
}

export function rawRequest(options: Send): string {
  const { method = 'POST', path = '/' } = options
  const body = bodyOf(options)
  const content = body === undefined ? '' : Buffer.from(body).toString('latin1')
  const headers: http.OutgoingHttpHeaders = {
    Host: 'localhost',
    ...(body === undefined ? {} : { 'Content-Length': content.length }),
    ...headersOf(options),
  }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${String(value)}\r\n`)
  return `${method} ${path} HTTP/1.1\r\n${lines.join('')}\r\n${content}`
}

/** Passes errors of an async handler to `next`, as Express 5 does and Express 4 does not. */
export function caught(
  handler: (req: Request, res: Response, next: NextFunction) => unknown,
): RequestHandler {
  return (req, res, next) => {
    try {
      Promise.resolve(handler(req, res, next)).catch(next)
    } catch (error) {
      next(error)
    }
  }
}

/** A guard on a new memory store, for an API without tenants. */
export function guardOf(options: Partial<IdempotencyOptions> = {}): IdempotencyMiddleware {
  const needsStore = options.engine === undefined && options.store === undefined
  const own = needsStore ? { store: memoryStore() } : {}
  return idempotency({ tenant: singleTenant, ...own, ...options } as IdempotencyOptions)
}

/** A store with calls that a test replaces, to delay them or to make them fail. */
export function wrapStore(store: Store, calls: Partial<Store>): Store {
  const transaction = store.transaction?.bind(store)
  return {
    name: store.name,
    claim: (requests) => store.claim(requests),
    settle: (settlements) => store.settle(settlements),
    renew: (renewals) => store.renew(renewals),
    resolve: (verdicts) => store.resolve(verdicts),
    sweep: (request) => store.sweep(request),
    reap: (request) => store.reap(request),
    read: (ref) => store.read(ref),
    list: (query) => store.list(query),
    ...(transaction === undefined ? {} : { transaction }),
    ...calls,
  }
}

/** An event that a test waits for, and fires with `open`. */
export function gate<Value = void>() {
  const { promise, resolve } = Promise.withResolvers<Value>()
  return { passed: promise, open: resolve }
}

/** Waits until the event loop has run everything that is ready, including socket events. */
export async function turns(count = 10): Promise<void> {
  for (let turn = 0; turn < count; turn++) {
    await new Promise((resolve) => {
      setImmediate(resolve)
    })
  }
}
