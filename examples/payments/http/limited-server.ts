import {
  createServer,
  STATUS_CODES,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http'
import type { Socket } from 'node:net'

/** More than any of our clients sends; above its own limit, Node drops headers silently. */
const HEADERS_MAX = 100
const HEADER_BYTES_MAX = 16 * 1024
/** No route accepts more. Parsers have limits too, but read the whole body before they refuse. */
const BODY_BYTES_MAX = 64 * 1024
/** A head is small: a slow one comes from a client that wants to block us. */
const HEAD_MS_MAX = 10_000
/** Pipelined requests on one connection. */
const IN_ADVANCE_MAX = 32
/** A client that neither sends nor reads. Longer than any of our answers takes. */
const SILENCE_MS_MAX = 60_000

export interface ServerLimits {
  /** The maximum time from the first to the last byte of a request. */
  readonly requestMs: number
}

/**
 * A server that no single client can block: a request that is too slow, too long or not HTTP is
 * answered with a problem, and its connection is closed.
 */
export function createLimitedServer(
  listener: RequestListener,
  { requestMs }: ServerLimits,
): Server {
  const exchanges = new Exchanges()
  const server = createServer({
    maxHeaderSize: HEADER_BYTES_MAX,
    headersTimeout: Math.min(HEAD_MS_MAX, requestMs),
    requestTimeout: requestMs,
    connectionsCheckingInterval: Math.min(1_000, Math.ceil(requestMs / 4)),
    // Answered below, because Node would answer without a body.
    requireHostHeader: false,
  })
  server.maxHeadersCount = HEADERS_MAX + 1
  server.setTimeout(SILENCE_MS_MAX)

  server.on('request', (req, res) => {
    exchanges.enter(res, () => {
      const status = misfitOf(req)
      if (status === undefined) return listener(req, res)
      const body = problemOf(status)
      res.writeHead(status, { ...headersOf(body), Connection: 'close' }).end(body)
    })
  })
  // Without a listener, Node answers this without a body.
  server.on('checkExpectation', (req, res) => server.emit('request', req, res))
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    const mayAnswer = error.code !== 'ECONNRESET' && socket.writable
    if (mayAnswer && exchanges.isTheirs(socket as Socket)) {
      socket.end(refusalOf(statusOfError(error.code)), () => socket.destroy())
    } else {
      socket.destroy(error)
    }
  })
  return server
}

interface Exchange {
  readonly res: ServerResponse
  readonly begin: () => void
}

/**
 * The requests in progress on each connection: clients may pipeline several. They start one at a
 * time, with an event loop turn in between: a packet holds hundreds of small requests, and starting
 * all at once would delay the requests of other clients.
 */
class Exchanges {
  readonly #open = new WeakMap<Socket, Exchange[]>()
  readonly #last = new WeakMap<Socket, ServerResponse>()

  enter(res: ServerResponse, begin: () => void): void {
    const { socket } = res.req
    const open = this.#open.get(socket) ?? []
    this.#open.set(socket, open)
    if (open.length > IN_ADVANCE_MAX) return void socket.destroy()
    open.push({ res, begin })
    this.#last.set(socket, res)
    res.once('close', () => setImmediate(() => this.#leave(open, res)))
    if (open.length === 1) begin()
  }

  #leave(open: Exchange[], res: ServerResponse): void {
    const at = open.findIndex((exchange) => exchange.res === res)
    open.splice(at, 1)
    // If the client has disconnected, later requests are never started.
    if (at === 0 && open[0]?.res.destroyed === false) open[0].begin()
  }

  /**
   * Whether the client would assign a refusal to the refused request. It would not if an earlier
   * request is still in progress, whose answer it awaits: the client would believe that its payment
   * was refused. Nor if the request already has its answer.
   */
  isTheirs(socket: Socket): boolean {
    const last = this.#last.get(socket)
    if (last !== undefined && last.headersSent && !last.req.complete) return false
    return (this.#open.get(socket) ?? []).every(({ res }) => !res.req.complete)
  }
}

/** The status for a request that is refused before routing. */
function misfitOf({ rawHeaders, headers, httpVersion, url }: IncomingMessage): number | undefined {
  if (rawHeaders.length > 2 * HEADERS_MAX) return 431
  if (headers.expect !== undefined && headers.expect.toLowerCase() !== '100-continue') return 417
  if (Number(headers['content-length'] ?? 0) > BODY_BYTES_MAX) return 413
  if (headers.host === undefined && httpVersion === '1.1') return 400
  // A path, or an absolute URL. Express cannot route anything else, not even to a 404.
  if (!/^(\/|https?:\/\/[^/?#]+([/?#]|$)|\*$)/i.test(url ?? '')) return 400
  return undefined
}

function statusOfError(code: string | undefined): number {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return 431
    case 'HPE_CHUNK_EXTENSIONS_OVERFLOW':
      return 413
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return 408
    default:
      return 400
  }
}

function headersOf(body: string): Record<string, string> {
  return {
    'Content-Type': 'application/problem+json',
    'Content-Length': `${Buffer.byteLength(body)}`,
  }
}

function refusalOf(status: number): string {
  const body = problemOf(status)
  const headers = Object.entries({ ...headersOf(body), Connection: 'close' })
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`)
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`
}

function problemOf(status: number): string {
  return JSON.stringify({
    type: 'urn:example:payments:unreadable-request',
    status,
    code: 'unreadable_request',
    title: 'The request cannot be read',
    detail: DETAILS[status] ?? 'This is not a valid HTTP request.',
  })
}

const DETAILS: Readonly<Record<number, string>> = {
  408: 'The request took too long to arrive. Retry with the same idempotency key.',
  413: `The body is too large: at most ${BODY_BYTES_MAX} bytes are allowed.`,
  417: 'The only supported expectation is 100-continue.',
  431: `Send at most ${HEADERS_MAX} headers with ${HEADER_BYTES_MAX} bytes in total.`,
}
