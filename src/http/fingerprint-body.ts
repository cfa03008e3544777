import { canonicalJson, canonicalMembers } from './canonical-json.ts'
import { boundaryOf, splitMultipart } from './multipart.ts'
import { valueToJson } from './value-to-json.ts'

/** A request's body, as far as it can still be had. */
export type FingerprintBody =
  | {
      readonly kind: 'bytes'
      readonly bytes: Uint8Array
      /** A parser before us has undone what `Content-Encoding` names. */
      readonly isDecoded?: boolean
    }
  /** A body parser ran before us and the bytes are gone. */
  | { readonly kind: 'value'; readonly value: unknown }
  | { readonly kind: 'none' }

/** The part of a hash that bodies need. */
interface Sink {
  update(data: string | Uint8Array): unknown
}

interface BodyInput {
  readonly mediaType: string
  readonly body: FingerprintBody
  readonly fields?: readonly string[] | undefined
}

// What follows the head is told apart by one letter, so that no text can pose as bytes.
const NONE = 'n'
const BYTES = 'b'
const JSON_TEXT = 'j'
const FIELDS = 'f'
const MULTIPART = 'm'

/** Hashes head and body. False when the body has no form that could be hashed. */
export function hashBody(hash: Sink, head: string, input: BodyInput): boolean {
  const { body } = input
  if (body.kind === 'none' || (body.kind === 'value' && body.value === undefined)) {
    hash.update(head + NONE)
    return true
  }
  if (body.kind === 'bytes') return hashBytes(hash, head, body.bytes, input)
  const { value } = body
  if (value instanceof Uint8Array) return hashBytes(hash, head, value, input)
  // A text may be the body unparsed, or a JSON string parsed. Taken as JSON, the body `"1"` would
  // pass for the body `1`; taken as bytes, neither can pass for anything else.
  if (typeof value === 'string') return hashPlain(hash, head, Buffer.from(value, 'utf8'))
  const json = valueToJson(value)
  const canonical = json === undefined ? undefined : canonicalJson(json)
  if (canonical === undefined) return false
  hash.update(head + jsonPart(canonical, input.fields))
  return true
}

function hashBytes(hash: Sink, head: string, bytes: Uint8Array, input: BodyInput): boolean {
  const mediaType = mediaTypeOf(input.mediaType)
  if (bytes.length > 0 && isJsonType(mediaType)) {
    const canonical = canonicalOf(bytes)
    if (canonical !== undefined) {
      hash.update(head + jsonPart(canonical, input.fields))
      return true
    }
  }
  const boundary = mediaType.startsWith('multipart/') ? boundaryOf(input.mediaType) : undefined
  if (boundary === undefined) return hashPlain(hash, head, bytes)
  const { content, lengths } = splitMultipart(bytes, boundary)
  hash.update(`${head}${MULTIPART}${lengths.join(',')}:`)
  hash.update(content)
  return true
}

function hashPlain(hash: Sink, head: string, bytes: Uint8Array): boolean {
  hash.update(head + (bytes.length === 0 ? NONE : BYTES))
  hash.update(bytes)
  return true
}

function jsonPart(canonical: string, fields: readonly string[] | undefined): string {
  const members = fields === undefined ? undefined : canonicalMembers(canonical)
  if (fields === undefined || members === undefined) return JSON_TEXT + canonical
  let text = FIELDS
  // Sorted, so that a reordered option does not turn away the retries of the last deploy.
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
    // Made anew each time: a shared one may carry state over from a body it choked on.
    return canonicalJson(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch {
    return undefined
  }
}

/** The media type in lower case, without parameters. */
export function mediaTypeOf(contentType: string): string {
  const end = contentType.indexOf(';')
  return (end < 0 ? contentType : contentType.slice(0, end)).trim().toLowerCase()
}

const isJsonType = (mediaType: string): boolean =>
  mediaType === 'application/json' || (mediaType.endsWith('+json') && mediaType.includes('/'))

/**
 * Length first, so that neighbours cannot trade characters. Half a surrogate pair is written as
 * an escape, under another mark: UTF-8 would turn every one of them into U+FFFD.
 */
export function part(text: string): string {
  if (text.isWellFormed()) return `${text.length}:${text}`
  const escaped = JSON.stringify(text)
  return `${escaped.length}!${escaped}`
}
