/** HTTP clients that send exactly the given request and return the reply unchanged. */
import http from 'node:http'
import net from 'node:net'

export interface Send {
  readonly port: number
  /** @default 'POST' */
  readonly method?: string
  /** @default '/payments' */
  readonly path?: string
  /** The idempotency key. An array is sent as one header line per key. */
  readonly key?: string | readonly string[]
  /** @default 'tenant-1' */
  readonly tenant?: string
  readonly headers?: http.OutgoingHttpHeaders
  /** Body, sent as JSON. */
  readonly json?: unknown
  readonly body?: string | Uint8Array
  /** Body parts that are sent before `body`, with chunked encoding. */
  readonly chunks?: readonly (string | Uint8Array)[]
}

export interface Received {
  readonly status: number
  /** Lower-case names. Several lines of one header are joined with a comma and a space. */
  readonly headers: Readonly<Record<string, string | undefined>>
  readonly body: Buffer
  readonly text: string
}

/** The header from which the cases read the tenant of a request. */
export const TENANT_HEADER = 'x-tenant'

/** Each request uses a new connection, so that no case depends on another. */
export function send(request: Send): Promise<Received> {
  return new Promise((resolve, reject) => {
    const { port, method = 'POST', path = '/payments', chunks = [] } = request
    const headers = headersOf(request)
    const sent = http.request({ host: '127.0.0.1', port, method, path, headers, agent: false })
    sent.on('error', reject)
    sent.on('response', (response) => {
      const pieces: Buffer[] = []
      response.on('data', (piece: Buffer) => pieces.push(piece))
      response.on('error', reject)
      response.on('end', () => resolve(toReceived(response, Buffer.concat(pieces))))
    })
    for (const chunk of chunks) sent.write(chunk)
    sent.end(bodyOf(request))
  })
}

/** Returns the reply, or `undefined` if the server cut the connection. */
export async function sendOrCut(request: Send): Promise<Received | undefined> {
  try {
    return await send(request)
  } catch {
    return undefined
  }
}

/** A raw connection that sends exactly the given bytes and can be cut at any time. */
export class RawClient {
  readonly #socket: net.Socket
  #received = ''
  #onNews: () => void = () => undefined

  static open(port: number): Promise<RawClient> {
    return new Promise((resolve, reject) => {
      const socket = net.connect({ port, host: '127.0.0.1' })
      socket.once('error', reject)
      socket.once('connect', () => resolve(new RawClient(socket)))
    })
  }

  private constructor(socket: net.Socket) {
    this.#socket = socket
    socket.on('data', (chunk: Buffer) => {
      this.#received += chunk.toString('latin1')
      this.#onNews()
    })
    // Some cases cut the connection on purpose.
    socket.on('error', () => undefined)
    socket.on('close', () => this.#onNews())
  }

  write(text: string): void {
    this.#socket.write(text, 'latin1')
  }

  /** Resolves when the received text matches `pattern` or the connection is closed. */
  until(pattern: RegExp): Promise<string> {
    return new Promise((resolve) => {
      this.#onNews = () => {
        if (pattern.test(this.#received) || this.#socket.closed) resolve(this.#received)
      }
      this.#onNews()
    })
  }

  /** Ends the connection with a reset, like a client that crashes. */
  cut(): void {
    this.#socket.resetAndDestroy()
  }

  /** Ends the connection with a regular close. */
  close(): void {
    this.#socket.destroy()
  }
}

/** A request as raw HTTP text, for `RawClient`. */
export function rawRequest(request: Omit<Send, 'port' | 'chunks'>): string {
  const { method = 'POST', path = '/payments' } = request
  const content = Buffer.from(bodyOf(request) ?? '').toString('latin1')
  const headers = { Host: 'localhost', 'Content-Length': content.length, ...headersOf(request) }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${String(value)}\r\n`)
  return `${method} ${path} HTTP/1.1\r\n${lines.join('')}\r\n${content}`
}

function headersOf(request: Omit<Send, 'port'>): http.OutgoingHttpHeaders {
  const { key, tenant = 'tenant-1', json, headers } = request
  return {
    [TENANT_HEADER]: tenant,
    ...(key === undefined ? {} : { 'Idempotency-Key': typeof key === 'string' ? key : [...key] }),
    ...(json === undefined ? {} : { 'Content-Type': 'application/json' }),
    ...headers,
  }
}

function bodyOf({ json, body }: Omit<Send, 'port'>): string | Uint8Array | undefined {
  return json === undefined ? body : JSON.stringify(json)
}

function toReceived(response: http.IncomingMessage, body: Buffer): Received {
  const headers: Record<string, string> = {}
  for (let i = 0; i + 1 < response.rawHeaders.length; i += 2) {
    const name = response.rawHeaders[i]!.toLowerCase()
    const value = response.rawHeaders[i + 1]!
    headers[name] = headers[name] === undefined ? value : `${headers[name]}, ${value}`
  }
  return { status: response.statusCode!, headers, body, text: body.toString() }
}
