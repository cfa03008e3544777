/** Requests as bytes, and replies taken apart by hand: no HTTP library stands in between. */
import type { Client } from '../adapters/run-express.ts'

export interface WireReply {
  readonly status: number
  /** By lower-case name. */
  readonly headers: ReadonlyMap<string, string>
  readonly body: string
}

/** A POST with these header lines, each ended by `\r\n` as it goes over the wire. */
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
  // One byte for each character, so that a test may send any byte.
  return Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`, 'latin1')
}

/** All replies that have come over a connection, in their order. The last one may be partial. */
export function repliesIn(received: string): WireReply[] {
  const replies: WireReply[] = []
  for (let rest = received; rest !== '';) {
    const end = rest.indexOf('\r\n\r\n')
    if (end === -1) return replies
    const [first = '', ...lines] = rest.slice(0, end).split('\r\n')
    const headers = new Map(lines.map((line) => toHeader(line)))
    const length = Number(headers.get('content-length') ?? 0)
    const body = rest.slice(end + 4, end + 4 + length)
    if (body.length < length) return replies
    replies.push({ status: Number(first.split(' ')[1]), headers, body })
    rest = rest.slice(end + 4 + length)
  }
  return replies
}

function toHeader(line: string): [name: string, value: string] {
  const colon = line.indexOf(':')
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()]
}

/** Waits until this many whole replies have come, or the server has closed the connection. */
export async function replies(client: Client, count: number): Promise<WireReply[]> {
  for (;;) {
    const seen = client.received
    const found = repliesIn(seen)
    if (found.length >= count || client.isClosed) return found
    await client.until(new RegExp(`^[^]{${seen.length + 1},}`))
  }
}
