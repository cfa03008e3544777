import { InvalidOptionsError } from '../core/errors.ts'
import { withoutContent } from './key-id.ts'

/** The length of every key: master keys, data keys, and the key of one value. */
export const KEY_BYTES = 32

/** Returns a key after its checks. The message has nothing of the key but its length. */
export function checkKeyBytes(where: string, key: unknown): Uint8Array {
  if (!(key instanceof Uint8Array)) {
    const hint = typeof key === 'string' ? "; decode it, as with Buffer.from(text, 'base64')" : ''
    throw new InvalidOptionsError(
      `${where} must be a Uint8Array of ${KEY_BYTES} bytes, got ${withoutContent(key)}${hint}`,
    )
  }
  if (key.byteLength !== KEY_BYTES) {
    throw new InvalidOptionsError(
      `${where} must have ${KEY_BYTES} bytes, got ${withoutContent(key)}`,
    )
  }
  if (key.every((byte) => byte === 0)) {
    throw new InvalidOptionsError(
      `${where} has only zero bytes, like a buffer that was never filled or was wiped; make a ` +
        `key with crypto.randomBytes(${KEY_BYTES})`,
    )
  }
  return key
}
