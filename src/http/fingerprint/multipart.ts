/** The limit of RFC 2046. It also limits the cost of the search. */
const BOUNDARY_LENGTH_MAX = 70

const BOUNDARY = /;[ \t]*boundary=(?:"((?:[^"\\]|\\.)*)"|([^;\s"]+))/i

const CR = 0x0d
const LF = 0x0a
const DASH = 0x2d
const SPACE = 0x20
const TAB = 0x09

/** The boundary that a multipart content type names, or `undefined` without a valid one. */
export function boundaryOf(contentType: string): string | undefined {
  const match = BOUNDARY.exec(contentType)
  const boundary = match?.[1]?.replaceAll(/\\(.)/g, '$1') ?? match?.[2]
  if (boundary === undefined || boundary === '') return undefined
  return boundary.length > BOUNDARY_LENGTH_MAX ? undefined : boundary
}

/**
 * A multipart body without its delimiters, and the lengths of the pieces between them. Clients make
 * a new random boundary for every attempt, and neither value depends on it. Together they still
 * distinguish any two bodies; a marker in place of the boundary would not.
 */
export function splitMultipart(
  bytes: Uint8Array,
  boundary: string,
): { readonly content: Uint8Array; readonly lengths: readonly number[] } {
  const source = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)
  const delimiter = Buffer.from(`--${boundary}`, 'latin1')
  const content = Buffer.allocUnsafe(source.length)
  const lengths: number[] = []
  let written = 0
  let pieceStart = 0
  let at = source.indexOf(delimiter)
  for (; at >= 0; at = source.indexOf(delimiter, at + 1)) {
    const end = at + delimiter.length
    if (at < pieceStart || !startsLine(source, at) || !endsDelimiter(source, end)) continue
    source.copy(content, written, pieceStart, at)
    lengths.push(at - pieceStart)
    written += at - pieceStart
    pieceStart = end
  }
  source.copy(content, written, pieceStart)
  lengths.push(source.length - pieceStart)
  return { content: content.subarray(0, written + source.length - pieceStart), lengths }
}

function startsLine(bytes: Uint8Array, at: number): boolean {
  return at === 0 || (bytes[at - 1] === LF && bytes[at - 2] === CR)
}

/** False if `--boundary` is only the start of a longer line, which is content. */
function endsDelimiter(bytes: Uint8Array, at: number): boolean {
  const next = bytes[at]
  if (next === undefined || next === CR || next === SPACE || next === TAB) return true
  return next === DASH && bytes[at + 1] === DASH
}
