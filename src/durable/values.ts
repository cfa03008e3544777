import { InvalidRequestError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import { readJson } from '../core/read-json.ts'

/** Inputs, requests, results and payloads are for moving on, not for keeping files in. */
export const VALUE_BYTES_MAX = 1024 * 1024

const JSON_MARK = 0x4a
const BYTES_MARK = 0x42
const NOTHING = new Uint8Array(0)

/**
 * A value as it is stored: JSON, or bytes as they are, told apart by the first byte; nothing for
 * `undefined`. `where` is for messages.
 */
export function encodeValue(
  where: string,
  value: unknown,
  bytesMax: number = VALUE_BYTES_MAX,
): Uint8Array {
  if (value === undefined) return NOTHING
  const isBytes = value instanceof Uint8Array
  const body = isBytes ? value : Buffer.from(toJson(where, value))
  if (body.byteLength > bytesMax) {
    throw new InvalidRequestError(
      `${where} has ${body.byteLength} bytes; at most ${bytesMax} are allowed`,
    )
  }
  const bytes = new Uint8Array(body.byteLength + 1)
  bytes[0] = isBytes ? BYTES_MARK : JSON_MARK
  bytes.set(body, 1)
  return bytes
}

export function decodeValue(bytes: Uint8Array | undefined): unknown {
  if (bytes === undefined || bytes.byteLength === 0) return undefined
  const body = bytes.subarray(1)
  return bytes[0] === BYTES_MARK ? body : readJson(new TextDecoder().decode(body))
}

function toJson(where: string, value: unknown): string {
  let json: string | undefined
  try {
    json = JSON.stringify(value)
  } catch (cause) {
    throw new InvalidRequestError(`${where} cannot be stored as JSON: ${describe(value)}`, {
      cause,
    })
  }
  if (json !== undefined) return json
  throw new InvalidRequestError(`${where} cannot be stored as JSON: ${describe(value)}`)
}
