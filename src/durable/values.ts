import { NO_BYTES } from '../core/bytes.ts'
import { InvalidRequestError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import { readJson } from '../core/read-json.ts'

/** The limit of an input, request, result or payload: they are read into memory as a whole. */
export const VALUE_BYTES_MAX = 1024 * 1024

const JSON_MARK = 0x4a
const BYTES_MARK = 0x42
/** An encrypted value: see `sealed-bytes.ts`. */
export const SEALED_MARK = 0x45

/**
 * Encodes a value for the store: JSON or raw bytes, marked by the first byte, and no bytes for
 * `undefined`. `where` names the value in error messages.
 */
export function encodeValue(
  where: string,
  value: unknown,
  bytesMax: number = VALUE_BYTES_MAX,
): Uint8Array {
  if (value === undefined) return NO_BYTES
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

/** Decodes a plain value. Throws if it is damaged, or still encrypted. */
export function decodeValue(bytes: Uint8Array | undefined): unknown {
  if (bytes === undefined || bytes.byteLength === 0) return undefined
  const body = bytes.subarray(1)
  switch (bytes[0]) {
    case BYTES_MARK:
      return body
    case JSON_MARK:
      return readJson(new TextDecoder().decode(body))
    default:
      throw new Error(`the stored value begins with ${bytes[0]}, which is no known mark`)
  }
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
