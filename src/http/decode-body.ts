import { decodeContent } from './content-coding.ts'
import type { ExchangeBody } from './exchange.ts'

/**
 * The body as it was before the client compressed it: a retry may be compressed differently, or
 * not at all, and is the same request. Never larger than `bytesMax`. What cannot be decoded stays
 * as it is: its parser has to refuse it, not we.
 */
export async function decodeBody(
  body: ExchangeBody,
  coding: string | undefined,
  bytesMax: number,
): Promise<ExchangeBody> {
  if (coding === undefined || body.kind !== 'bytes' || body.bytes.length === 0) return body
  // Decoded once more, it could turn into something else: not every coding knows its own.
  if (body.isDecoded === true) return body
  // Not every Node can decode it, and the servers of one API must agree about what is the same.
  if (coding.trim().toLowerCase() === 'zstd') return body
  const decoded = await decodeContent(body.bytes, coding, bytesMax)
  switch (decoded.kind) {
    case 'decoded':
      return { kind: 'bytes', bytes: decoded.bytes }
    case 'too_large':
      return decoded
    case 'undecodable':
      return body
  }
}
