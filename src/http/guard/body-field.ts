import { readJson } from '../../core/read-json.ts'
import { mediaTypeOf, type FingerprintBody } from '../fingerprint/fingerprint-body.ts'

/**
 * Returns the field of a body at a path, for APIs whose key is in the body. `undefined` if the body
 * has no such field, or no fields at all.
 */
export function fieldOf(body: FingerprintBody, contentType: string, path: string): unknown {
  let value = body.kind === 'value' ? body.value : parse(body, mediaTypeOf(contentType))
  for (const name of path.split('.')) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined
    value = (value as Record<string, unknown>)[name]
  }
  return value ?? undefined
}

function parse(body: FingerprintBody, mediaType: string): unknown {
  if (body.kind !== 'bytes') return undefined
  const text = new TextDecoder().decode(body.bytes)
  if (mediaType === 'application/x-www-form-urlencoded') return formOf(text)
  try {
    return readJson(text)
  } catch {
    return undefined
  }
}

/** A repeated field becomes a list, as in body parsers, and is then no valid key. */
function formOf(text: string): Record<string, string | readonly string[]> {
  const form = new URLSearchParams(text)
  const fields = [...new Set(form.keys())].map((name) => {
    const values = form.getAll(name)
    return [name, values.length === 1 ? values[0]! : values] as const
  })
  return Object.fromEntries(fields)
}
