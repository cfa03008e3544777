import * as zlib from 'node:zlib'

type Decode = (
  bytes: Uint8Array,
  options: { readonly maxOutputLength: number },
  callback: (error: Error | null, decoded: Uint8Array) => void,
) => void

/**
 * What we can undo, by the names it has in `Content-Encoding`. Node knows zstd as of 22.15, and
 * nobody compresses with it before.
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
  /** Not a coding of ours, several of them, or bytes that are none of it. */
  | { readonly kind: 'undecodable' }

/** Undoes a content coding. Never gives more than `bytesMax`, whatever a few bytes claim. */
export function decodeContent(
  bytes: Uint8Array,
  coding: string | undefined,
  bytesMax: number,
): Promise<Decoded> | Decoded {
  const decode = CODINGS.get(coding?.trim().toLowerCase() ?? '')
  if (decode === undefined) return { kind: 'undecodable' }
  return new Promise((resolve) => {
    // Its bound must be positive; one byte too many is found out below.
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
 * Whether a client can read this coding. One that sends no `Accept-Encoding` is taken at its word
 * by nobody: what it can read for certain is a body without any.
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
