import { acceptsCoding, decodeContent } from '../guard/content-coding.ts'
import type { HttpReply } from '../guard/exchange.ts'

/** `replyBytesMax` limits the encoded bytes of a recorded reply, but not the decoded ones. */
const DECODED_BYTES_MAX = 64 * 1024 * 1024

/** Headers that describe the encoded bytes, and are wrong for the decoded ones. */
const CODED_BYTES_HEADERS: ReadonlySet<string> = new Set([
  'content-encoding',
  'content-digest',
  'content-md5',
  'digest',
  'repr-digest',
])

/**
 * The recorded reply in a coding that this client accepts. If compression runs behind the guard,
 * the recorded bytes have the coding that the first client accepted. A retry may accept others.
 */
export function readableBy(
  accepted: string | undefined,
  reply: HttpReply,
): HttpReply | Promise<HttpReply> {
  const coding = reply.headers.find(([name]) => name.toLowerCase() === 'content-encoding')?.[1]
  if (coding === undefined || reply.body.byteLength === 0) return reply
  // The range of a partial reply counts encoded bytes, so it cannot be decoded.
  if (reply.status === 206) return reply
  if (acceptsCoding(accepted, coding.trim().toLowerCase())) return reply
  return decodedReply(reply, coding)
}

async function decodedReply(reply: HttpReply, coding: string): Promise<HttpReply> {
  const decoded = await decodeContent(reply.body, coding, DECODED_BYTES_MAX)
  // The client gets the encoded bytes, which is better than no reply.
  if (decoded.kind !== 'decoded') return reply
  const headers = reply.headers.filter(([name, value]) => {
    const lower = name.toLowerCase()
    // A strong ETag describes the encoded bytes, too.
    return !CODED_BYTES_HEADERS.has(lower) && !(lower === 'etag' && !value.startsWith('W/'))
  })
  return { status: reply.status, headers, body: decoded.bytes }
}
