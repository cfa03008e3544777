/** The chunks and callbacks that a handler passes to `write` and `end`. */
import { codedError } from './node-errors.ts'

export type Callback = (error?: Error | null) => void

export function toBytes(chunk: unknown, encoding: unknown): Uint8Array {
  if (typeof chunk === 'string') {
    const name = typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8'
    return Buffer.from(chunk, name)
  }
  // A copy: the caller may reuse its buffer once `write` has called back.
  if (chunk instanceof Uint8Array) return Buffer.from(chunk)
  const message = `a chunk must be a string, a Buffer or a Uint8Array, got ${typeof chunk}`
  throw codedError(TypeError, message, 'ERR_INVALID_ARG_TYPE')
}

export function joined(chunks: readonly Uint8Array[]): Uint8Array {
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)
}

/** The callback of `write(chunk, callback)` or `write(chunk, encoding, callback)`. */
export function callbackOf(encoding: unknown, callback: unknown): Callback | undefined {
  if (typeof encoding === 'function') return encoding as Callback
  return typeof callback === 'function' ? (callback as Callback) : undefined
}

export function runAll(callbacks: readonly Callback[]): void {
  for (const callback of callbacks) callback()
}

/** Adds to a list that is created with its first item: most replies have one chunk. */
export function added<Item>(list: Item[] | undefined, item: Item): Item[] {
  if (list === undefined) return [item]
  list.push(item)
  return list
}
