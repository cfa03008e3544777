/** Raw bytes that no HTTP library would send, and replies parsed without a library. */
import { connect, type Socket } from 'node:net'

export interface RawReply {
  readonly status: number
  /** Header values by lower-case name. */
  readonly headers: ReadonlyMap<string, string>
  readonly body: string
}

export interface RawAnswer {
  /** Complete replies, in order, without those of status 100. */
  readonly replies: readonly RawReply[]
  /** Bytes after the last complete reply. */
  readonly rest: string
  /** `reset`: closed by the server while there were bytes to send. */
  readonly end: 'closed' | 'reset' | 'silence'
}

export interface RawRequest {
  readonly port: number
  /** Sent one after the other. */
  readonly pieces: readonly Buffer[]
  /** Pause between two pieces. @default 0 */
  readonly pauseMs?: number
  /** Ends our side after this time without a byte from the server. @default 5000 */
  readonly silenceMs?: number
  /** The time for the server to close after our side was ended. @default 5000 */
  readonly holdMs?: number
  /** The replies have no bodies. */
  readonly isHead?: boolean
  /** Stops after this many complete replies. @default until it closes */
  readonly repliesMax?: number
}

/** Longer than the timeout of the server, so that the server closes the connection. */
const SILENCE_MS = 5_000
const HOLD_MS = 5_000
const RECEIVED_BYTES_MAX = 4 * 1024 * 1024

/** Sends bytes over a new connection and waits until the server has closed it. */
export function exchangeRaw(request: RawRequest): Promise<RawAnswer> {
  const { port, silenceMs = SILENCE_MS, holdMs = HOLD_MS } = request
  const { repliesMax = Number.POSITIVE_INFINITY } = request
  return new Promise((resolve) => {
    const socket = connect({ port, host: '127.0.0.1', noDelay: true })
    const chunks: Buffer[] = []
    let bytes = 0
    let isEnded = false
    let timer = setTimeout(onSilence, silenceMs)
    const finish = (end: RawAnswer['end']) => {
      clearTimeout(timer)
      socket.destroy()
      resolve({ ...repliesIn(Buffer.concat(chunks).toString('latin1'), request), end })
    }
    function onSilence(): void {
      if (isEnded) return finish('silence')
      isEnded = true
      socket.end()
      timer = setTimeout(onSilence, holdMs)
    }
    socket.on('data', (chunk) => {
      bytes += chunk.length
      if (bytes <= RECEIVED_BYTES_MAX) chunks.push(chunk)
      if (!isEnded) timer.refresh()
      if (repliesMax === Number.POSITIVE_INFINITY) return
      const { replies } = repliesIn(Buffer.concat(chunks).toString('latin1'), request)
      if (replies.length >= repliesMax) finish('closed')
    })
    socket.once('close', () => finish('closed'))
    // The server closed the connection before all bytes were sent.
    socket.once('error', () => finish('reset'))
    socket.once('connect', () => void sendPieces(socket, request, () => timer.refresh()))
  })
}

async function sendPieces(
  socket: Socket,
  { pieces, pauseMs = 0 }: RawRequest,
  onSent: () => void,
): Promise<void> {
  for (const [index, piece] of pieces.entries()) {
    if (index > 0 && pauseMs > 0) {
      await new Promise((resolve) => setTimeout(resolve, pauseMs))
    }
    if (!socket.writable) return
    socket.write(piece)
    onSent()
  }
}

/** The complete replies in the received bytes, and the rest. */
export function repliesIn(
  received: string,
  { isHead = false }: { readonly isHead?: boolean },
): Pick<RawAnswer, 'replies' | 'rest'> {
  const replies: RawReply[] = []
  let rest = received
  while (rest !== '') {
    const end = rest.indexOf('\r\n\r\n')
    if (end === -1) break
    const [first = '', ...lines] = rest.slice(0, end).split('\r\n')
    const status = Number(/^HTTP\/1\.1 (\d{3}) /.exec(first)?.[1])
    const headers = new Map(lines.map((line) => headerOf(line)))
    const length = bodyLength(status, headers, isHead)
    if (Number.isNaN(status) || Number.isNaN(length) || rest.length < end + 4 + length) break
    const body = rest.slice(end + 4, end + 4 + length)
    if (status !== 100) replies.push({ status, headers, body })
    rest = rest.slice(end + 4 + length)
  }
  return { replies, rest }
}

/** Every reply of the service has a Content-Length. */
function bodyLength(status: number, headers: ReadonlyMap<string, string>, isHead: boolean): number {
  if (isHead || status === 100 || status === 204 || status === 304) return 0
  return Number(headers.get('content-length') ?? Number.NaN)
}

function headerOf(line: string): [name: string, value: string] {
  const colon = line.indexOf(':')
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()]
}
