import * as zlib from 'node:zlib'
import type { ExchangeBody } from './exchange.ts'

type Decode = (
  bytes: Uint8Array,
  options: { readonly maxOutputLength: number },
  callback: (error: Error | null, decoded: Uint8Array) => void,
) => void

/**
 * The decoders, by the names of their codings in `Content-Encoding`. Node has zstd as of 22.15;
 * older versions cannot compress with it either.
 */
const CODINGS = new Map<string, Decode | undefined>([
  ['gzip', zlib.gunzip],
  ['x-gzip', zlib.gunzip],
  ['deflate', zlib.inflate],
  ['br', zlib.brotliDecompress],
  ['zstd', (zlib as { readonly zstdDecompress?: Decode }).zstdDecompress],
])

export type Decoded =
  | { readonly kind: 'decoded'; readonly bytes: Uint8Array }
  | { readonly kind: 'too_large' }
  /** An unknown coding, several codings, or bytes that are not encoded in this one. */
  | { readonly kind: 'undecodable' }

/** Undoes a content coding. Stops at `bytesMax`, because a few bytes may expand without limit. */
export function decodeContent(
  bytes: Uint8Array,
  coding: string | undefined,
  bytesMax: number,
): Promise<Decoded> | Decoded {
  const decode = CODINGS.get(coding?.trim().toLowerCase() ?? '')
  if (decode === undefined) return { kind: 'undecodable' }
  return new Promise((resolve) => {
    // zlib requires a positive limit. If `bytesMax` is 0, the length is checked below.
    decode(bytes, { maxOutputLength: Math.max(bytesMax, 1) }, (error, decoded) => {
      if (isTooLarge(error)) {
        resolve({ kind: 'too_large' })
      } else if (error !== null) resolve({ kind: 'undecodable' })
      else if (decoded.length > bytesMax) resolve({ kind: 'too_large' })
      else resolve({ kind: 'decoded', bytes: decoded })
    })
  })
}

function isTooLarge(error: { readonly code?: unknown } | Error | null): boolean {
  return error !== null && 'code' in error && error.code === 'ERR_BUFFER_TOO_LARGE'
}

/**
 * Returns the body as it was before the client compressed it: a retry may be compressed
 * differently, or not at all, and is the same request. Never larger than `bytesMax`. A body that
 * cannot be decoded is returned unchanged, because its parser has to refuse it.
 */
export async function decodeBody(
  body: ExchangeBody,
  coding: string | undefined,
  bytesMax: number,
): Promise<ExchangeBody> {
  if (coding === undefined || body.kind !== 'bytes' || body.bytes.length === 0) return body
  // A second decoding could change the bytes: some codings accept bytes that are not encoded.
  if (body.isDecoded === true) return body
  // Only some Node versions decode zstd, and all servers of an API must compute the same
  // fingerprint.
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

/**
 * Whether a client can read this coding. A client without `Accept-Encoding` accepts any coding by
 * the rules of HTTP, but only a body without a coding is certain to be readable.
 */
export function acceptsCoding(accepted: string | undefined, coding: string): boolean {
  let byStar = false
  for (const part of (accepted ?? '').toLowerCase().split(',')) {
    const [name = '', ...parameters] = part.split(';').map((one) => one.trim())
    const weight = parameters.find((one) => one.startsWith('q='))?.slice(2)
    const isWanted = weight === undefined || Number(weight) > 0
    if (name === coding || `x-${name}` === coding || name === `x-${coding}`) return isWanted
    if (name === '*') byStar = isWanted
  }
  return byStar
}
