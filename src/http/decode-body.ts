import type { ExchangeBody } from './exchange.ts'

/** What every runtime can decode by itself, and what else it is called. */
const FORMATS = new Map<string, 'gzip' | 'deflate'>([
  ['gzip', 'gzip'],
  ['x-gzip', 'gzip'],
  ['deflate', 'deflate'],
])

/**
 * The body as it was before the client compressed it: a retry may be compressed differently, or
 * not at all, and is the same request. Never larger than `bytesMax`, whatever a few bytes claim to
 * contain. What cannot be decoded stays as it is: its parser has to refuse it, not we.
 */
export async function decodeBody(
  body: ExchangeBody,
  encoding: string | undefined,
  bytesMax: number,
): Promise<ExchangeBody> {
  const format = FORMATS.get(encoding?.trim().toLowerCase() ?? '')
  if (format === undefined || body.kind !== 'bytes' || body.bytes.length === 0) return body
  const decoded = new Blob([body.bytes]).stream().pipeThrough(new DecompressionStream(format))
  const chunks: Uint8Array[] = []
  let length = 0
  try {
    for await (const chunk of decoded as AsyncIterable<Uint8Array>) {
      length += chunk.length
      if (length > bytesMax) return { kind: 'too_large' }
      chunks.push(chunk)
    }
  } catch {
    return body
  }
  return { kind: 'bytes', bytes: Buffer.concat(chunks) }
}
