import {
  createServer,
  STATUS_CODES,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http'
import type { Socket } from 'node:net'

/** More than any client of ours sends; Node itself drops what is above its own limit unsaid. */
const HEADERS_MAX = 100
const HEADER_BYTES_MAX = 16 * 1024
/** No route takes more. Parsers know it too, but read the whole of a body before they refuse it. */
const BODY_BYTES_MAX = 64 * 1024
/** A head is small: it comes at once or from somebody who wants to keep us waiting. */
const HEAD_MS_MAX = 10_000
/** A client that neither sends nor reads. Longer than any answer of ours takes. */
const SILENCE_MS_MAX = 60_000

export interface ServerLimits {
  /** How long a request may take to arrive, from its first byte to its last. */
  readonly requestMs: number
}

/**
 * A server that no single client can hold up: what is too slow, too long or not HTTP is answered
 * with a problem, as everything else is, and its connection is closed.
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
    // Answered below: Node would do so without a word.
    requireHostHeader: false,
  })
  server.maxHeadersCount = HEADERS_MAX + 1
  server.setTimeout(SILENCE_MS_MAX)

  server.on('request', (req, res) => {
    exchanges.begin(res)
    const status = misfitOf(req)
    if (status === undefined) return listener(req, res)
    const body = problemOf(status)
    res.writeHead(status, { ...headersOf(body), Connection: 'close' }).end(body)
  })
  // Without a listener of its own, Node answers this one without a body.
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

/** What is under way on each connection: clients may send several requests in advance. */
class Exchanges {
  readonly #open = new WeakMap<Socket, Set<ServerResponse>>()
  readonly #last = new WeakMap<Socket, ServerResponse>()

  begin(res: ServerResponse<IncomingMessage>): void {
    const { socket } = res.req
    const open = this.#open.get(socket) ?? new Set()
    this.#open.set(socket, open.add(res))
    this.#last.set(socket, res)
    res.once('close', () => open.delete(res))
  }

  /**
   * Whether a refusal that is sent now would be taken for the answer to what is refused. It would
   * not where a request before it is still worked on, whose answer is awaited: a client would
   * believe that its payment was refused. Nor where the request has its answer already.
   */
  isTheirs(socket: Socket): boolean {
    const last = this.#last.get(socket)
    if (last !== undefined && last.headersSent && !last.req.complete) return false
    return [...(this.#open.get(socket) ?? [])].every(({ req }) => !req.complete)
  }
}

/** The status with which a request is refused whatever it asks for. */
function misfitOf({ rawHeaders, headers, httpVersion, url }: IncomingMessage): number | undefined {
  if (rawHeaders.length > 2 * HEADERS_MAX) return 431
  if (headers.expect !== undefined && headers.expect.toLowerCase() !== '100-continue') return 417
  if (Number(headers['content-length'] ?? 0) > BODY_BYTES_MAX) return 413
  if (headers.host === undefined && httpVersion === '1.1') return 400
  // A path, or an address with one. Of others Express can make nothing, not even a 404 of ours.
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
    detail: DETAILS[status] ?? 'This is not HTTP as we know it.',
  })
}

const DETAILS: Readonly<Record<number, string>> = {
  408: 'It took too long to arrive. Retry with the same idempotency key.',
  413: `It is too large: a body may have ${BODY_BYTES_MAX} bytes at the most.`,
  417: 'The only expectation that can be met is 100-continue.',
  431: `Send at most ${HEADERS_MAX} headers of ${HEADER_BYTES_MAX} bytes in all.`,
}
