import { acceptsCoding, decodeContent } from './content-coding.ts'
import type { HttpReply } from './exchange.ts'

/** A reply that was recorded encoded is small; what it holds need not be. */
const DECODED_BYTES_MAX = 64 * 1024 * 1024

/** These stand for the very bytes, and the decoded ones are others. */
const OF_CODED_BYTES: ReadonlySet<string> = new Set([
  'content-encoding',
  'content-digest',
  'content-md5',
  'digest',
  'repr-digest',
])

/**
 * A recorded reply as this client can read it. Where compression runs behind the guard, the bytes
 * on record are those that the first client had asked for; the next one may be another.
 */
export function readableBy(
  accepted: string | undefined,
  reply: HttpReply,
): HttpReply | Promise<HttpReply> {
  const coding = reply.headers.find(([name]) => name.toLowerCase() === 'content-encoding')?.[1]
  if (coding === undefined || reply.body.byteLength === 0) return reply
  // Of a part, the range is one of coded bytes.
  if (reply.status === 206) return reply
  if (acceptsCoding(accepted, coding.trim().toLowerCase())) return reply
  return decodedReply(reply, coding)
}

async function decodedReply(reply: HttpReply, coding: string): Promise<HttpReply> {
  const decoded = await decodeContent(reply.body, coding, DECODED_BYTES_MAX)
  // Better the bytes of the first reply than none.
  if (decoded.kind !== 'decoded') return reply
  const headers = reply.headers.filter(([name, value]) => {
    const lower = name.toLowerCase()
    // So does a strong tag.
    return !OF_CODED_BYTES.has(lower) && !(lower === 'etag' && !value.startsWith('W/'))
  })
  return { status: reply.status, headers, body: decoded.bytes }
}
