/** Requests as bytes, and replies parsed without an HTTP library. */
import type { Client } from '../adapters/run-express.ts'

export interface WireReply {
  readonly status: number
  /** Header values by lower-case name. */
  readonly headers: ReadonlyMap<string, string>
  readonly body: string
}

/** A POST with these header lines, each ended by `\r\n`. */
export function wireRequest(
  lines: readonly string[],
  { body = '{"amount":100}', path = '/payments', version = '1.1' } = {},
): Buffer {
  const head = [
    `POST ${path} HTTP/${version}`,
    'Host: localhost',
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
    ...lines,
  ]
  // One byte per character, so that a test can send any byte.
  return Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`, 'latin1')
}

/** The complete replies on a connection, in order. */
function repliesIn(received: string, isClosed: boolean): WireReply[] {
  const replies: WireReply[] = []
  for (let rest = received; rest !== '';) {
    const end = rest.indexOf('\r\n\r\n')
    if (end === -1) return replies
    const [first = '', ...lines] = rest.slice(0, end).split('\r\n')
    const headers = new Map(lines.map((line) => toHeader(line)))
    // Node sends no length to HTTP/1.0: the reply ends with the connection.
    const length = Number(headers.get('content-length') ?? Number.POSITIVE_INFINITY)
    const body = rest.slice(end + 4, end + 4 + length)
    if (body.length < length && !(isClosed && length === Number.POSITIVE_INFINITY)) return replies
    replies.push({ status: Number(first.split(' ')[1]), headers, body })
    rest = rest.slice(end + 4 + body.length)
  }
  return replies
}

function toHeader(line: string): [name: string, value: string] {
  const colon = line.indexOf(':')
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()]
}

/** Waits until this many complete replies have arrived, or the server closed the connection. */
export async function replies(client: Client, count: number): Promise<WireReply[]> {
  for (;;) {
    const seen = client.received
    const found = repliesIn(seen, client.socket.closed)
    if (found.length >= count || client.socket.closed) return found
    await client.until(new RegExp(`^[^]{${seen.length + 1},}`))
  }
}
