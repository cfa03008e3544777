import { canonicalJson } from './canonical-json.ts'
import { valueToJson } from './value-to-json.ts'

/** Deeper values are converted to text first, which needs no recursion. */
const DEPTH_MAX = 16

/**
 * The canonical JSON of a parsed body, or `undefined` if it has none. Most bodies are small and
 * plain, and are written directly. Other values are converted to text first; the canonical form is
 * the same either way.
 */
export function canonicalValue(value: unknown): string | undefined {
  const plain = canonicalPlain(value, 0)
  if (plain !== undefined) return plain
  const json = valueToJson(value)
  return json === undefined ? undefined : canonicalJson(json)
}

/** Returns `undefined` for a value that must be converted to text first. */
function canonicalPlain(value: unknown, depth: number): string | undefined {
  switch (typeof value) {
    case 'string':
      return JSON.stringify(value)
    case 'number':
      return Number.isFinite(value) ? String(value) : 'null'
    case 'boolean':
      return value ? 'true' : 'false'
    case 'object':
      if (value === null) return 'null'
      if (depth === DEPTH_MAX || typeof (value as { toJSON?: unknown }).toJSON === 'function') {
        return undefined
      }
      return Array.isArray(value) ? plainArray(value, depth) : plainObject(value, depth)
    default:
      return undefined
  }
}

function plainArray(values: readonly unknown[], depth: number): string | undefined {
  let text = '['
  for (const [index, value] of values.entries()) {
    const part = canonicalPlain(value, depth + 1)
    if (part === undefined) return undefined
    text += index === 0 ? part : `,${part}`
  }
  return `${text}]`
}

function plainObject(value: object, depth: number): string | undefined {
  if (Object.getPrototypeOf(value) !== Object.prototype) return undefined
  let text = '{'
  // `sort` orders by UTF-16 code units, as RFC 8785 requires.
  for (const name of Object.keys(value).sort()) {
    const part = canonicalPlain((value as Record<string, unknown>)[name], depth + 1)
    if (part === undefined) return undefined
    text += `${text === '{' ? '' : ','}${JSON.stringify(name)}:${part}`
  }
  return `${text}}`
}
