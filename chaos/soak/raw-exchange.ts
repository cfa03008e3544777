/** Bytes out, bytes in: what no HTTP library would send, and replies taken apart by hand. */
import { connect, type Socket } from 'node:net'

export interface RawReply {
  readonly status: number
  /** By lower-case name. */
  readonly headers: ReadonlyMap<string, string>
  readonly body: string
}

export interface RawAnswer {
  /** Whole replies, in their order; those of status 100 are left out. */
  readonly replies: readonly RawReply[]
  /** Bytes that are no whole reply. */
  readonly rest: string
  /** `reset`: closed by the server while we still had bytes for it. */
  readonly end: 'closed' | 'reset' | 'silence'
}

export interface RawRequest {
  readonly port: number
  /** Sent one after the other. */
  readonly pieces: readonly Buffer[]
  /** Between two pieces. @default 0 */
  readonly pauseMs?: number
  /** After so long without a byte from the server our side is ended. @default 5000 */
  readonly silenceMs?: number
  /** The replies have no bodies. */
  readonly isHead?: boolean
  /** After so many whole replies nothing more is waited for. @default until it closes */
  readonly repliesMax?: number
}

/** Longer than a good server waits for the rest of a request: it is the one to end this. */
const SILENCE_MS = 5_000
/** After our side was ended: no server of sound mind keeps it open that long. */
const HOLD_MS_MAX = 5_000
const RECEIVED_BYTES_MAX = 4 * 1024 * 1024

/** Sends bytes over a connection of their own and waits until the server has closed it. */
export function exchangeRaw(request: RawRequest): Promise<RawAnswer> {
  const { port, silenceMs = SILENCE_MS, repliesMax = Number.POSITIVE_INFINITY } = request
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
      timer = setTimeout(onSilence, HOLD_MS_MAX)
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
    // The server was done with us before we were done with it.
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

/** The whole replies in what was received, and what is left behind them. */
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

/** Every reply of the service states its length. */
function bodyLength(status: number, headers: ReadonlyMap<string, string>, isHead: boolean): number {
  if (isHead || status === 100 || status === 204 || status === 304) return 0
  return Number(headers.get('content-length') ?? Number.NaN)
}

function headerOf(line: string): [name: string, value: string] {
  const colon = line.indexOf(':')
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()]
}
