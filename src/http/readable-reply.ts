import { acceptsCoding, decodeContent } from './content-coding.ts'
import type { HttpReply } from './exchange.ts'

/** A reply that was recorded encoded is small; what it holds need not be. */
const DECODED_BYTES_MAX = 64 * 1024 * 1024

/**
 * A recorded reply as this client can read it. Where compression runs behind the guard, the bytes
 * on record are those that the first client had asked for; the next one may be another.
 */
export async function readableBy(
  accepted: string | undefined,
  reply: HttpReply,
): Promise<HttpReply> {
  const coding = reply.headers.find(([name]) => name.toLowerCase() === 'content-encoding')?.[1]
  if (coding === undefined || reply.body.byteLength === 0) return reply
  if (acceptsCoding(accepted, coding.trim().toLowerCase())) return reply
  const decoded = await decodeContent(reply.body, coding, DECODED_BYTES_MAX)
  // Better the bytes of the first reply than none.
  if (decoded.kind !== 'decoded') return reply
  const headers = reply.headers.filter(([name, value]) => {
    const lower = name.toLowerCase()
    // A strong tag stands for the very bytes, and these are others.
    return lower !== 'content-encoding' && !(lower === 'etag' && !value.startsWith('W/'))
  })
  return { status: reply.status, headers, body: decoded.bytes }
}
