import { canonicalJson, canonicalMembers } from './canonical-json.ts'
import { canonicalValue } from './canonical-value.ts'
import { boundaryOf, splitMultipart } from './multipart.ts'

/** The body of a request, in the form that is still available. */
export type FingerprintBody =
  | {
      readonly kind: 'bytes'
      readonly bytes: Uint8Array
      /** A parser before the guard has undone the codings that `Content-Encoding` names. */
      readonly isDecoded?: boolean
    }
  /** A body parser ran before the guard, and the bytes are gone. */
  | { readonly kind: 'value'; readonly value: unknown }
  | { readonly kind: 'none' }

/** The hashed form of a body: a text, followed by bytes if the body is not text. */
export interface HashedBody {
  readonly text: string
  readonly bytes?: Uint8Array
}

interface BodyInput {
  readonly mediaType: string
  readonly body: FingerprintBody
  readonly fields?: readonly string[] | undefined
}

// One letter after the head names the form of the body, so that a text never hashes like bytes.
const NONE = 'n'
const BYTES = 'b'
const JSON_TEXT = 'j'
const FIELDS = 'f'
const MULTIPART = 'm'

/** Returns `undefined` if the body has no form that can be hashed. */
export function hashedBody(input: BodyInput): HashedBody | undefined {
  const { body } = input
  if (body.kind === 'none') return { text: NONE }
  if (body.kind === 'bytes') return hashedBytes(body.bytes, input)
  const { value } = body
  if (value === undefined) return { text: NONE }
  if (value instanceof Uint8Array) return hashedBytes(value, input)
  // A string may be the unparsed body, or a parsed JSON string. Hashed as JSON, the body `"1"`
  // would equal the body `1`. Hashed as bytes, neither equals another body.
  if (typeof value === 'string') return plainBytes(Buffer.from(value, 'utf8'))
  const canonical = canonicalValue(value)
  return canonical === undefined ? undefined : { text: jsonPart(canonical, input.fields) }
}

function hashedBytes(bytes: Uint8Array, input: BodyInput): HashedBody {
  const mediaType = mediaTypeOf(input.mediaType)
  if (bytes.length > 0 && isJsonType(mediaType)) {
    const canonical = canonicalOf(bytes)
    if (canonical !== undefined) return { text: jsonPart(canonical, input.fields) }
  }
  const boundary = mediaType.startsWith('multipart/') ? boundaryOf(input.mediaType) : undefined
  if (boundary === undefined) return plainBytes(bytes)
  const { content, lengths } = splitMultipart(bytes, boundary)
  return { text: `${MULTIPART}${lengths.join(',')}:`, bytes: content }
}

function plainBytes(bytes: Uint8Array): HashedBody {
  return bytes.length === 0 ? { text: NONE } : { text: BYTES, bytes }
}

function jsonPart(canonical: string, fields: readonly string[] | undefined): string {
  const members = fields === undefined ? undefined : canonicalMembers(canonical)
  if (fields === undefined || members === undefined) return JSON_TEXT + canonical
  let text = FIELDS
  // Sorted, so that a deploy that reorders the option refuses no retry of an earlier request.
  for (const field of [...new Set(fields)].sort()) {
    const value = select(members, field.split('.'))
    text += part(field) + (value === undefined ? '-' : part(value))
  }
  return text
}

function select(
  members: ReadonlyMap<string, string>,
  [name = '', ...rest]: readonly string[],
): string | undefined {
  let value = members.get(name)
  for (const inner of rest) {
    value = value === undefined ? undefined : canonicalMembers(value)?.get(inner)
  }
  return value
}

function canonicalOf(bytes: Uint8Array): string | undefined {
  try {
    return canonicalJson(decoder.decode(bytes))
  } catch {
    // After an error the decoder may keep state of the invalid body.
    decoder = newDecoder()
    return undefined
  }
}

/** Kept between bodies: creating a decoder takes as long as all other work on a small body. */
const newDecoder = () => new TextDecoder('utf-8', { fatal: true })
let decoder = newDecoder()

/** The media type in lower case, without parameters. */
export function mediaTypeOf(contentType: string): string {
  const end = contentType.indexOf(';')
  return (end < 0 ? contentType : contentType.slice(0, end)).trim().toLowerCase()
}

const isJsonType = (mediaType: string): boolean =>
  mediaType === 'application/json' || (mediaType.endsWith('+json') && mediaType.includes('/'))

/**
 * Begins with the length, so that two adjacent parts cannot exchange characters. A text with a lone
 * surrogate is escaped and marked with `!`: UTF-8 would turn every lone surrogate into U+FFFD.
 */
export function part(text: string): string {
  if (text.isWellFormed()) return `${text.length}:${text}`
  const escaped = JSON.stringify(text)
  return `${escaped.length}!${escaped}`
}
