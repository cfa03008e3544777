import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'
import type { Encryption } from '../../../src/core/encryption.ts'

const flip = (bytes: Uint8Array): Uint8Array => bytes.map((byte) => byte ^ 0x5a)

/** Makes bytes unsearchable. Neither authenticated nor bound to a record. */
export const flipping: Encryption = { encrypt: flip, decrypt: flip }

/** The asynchronous variant, like a key service. */
export const flippingLater: Encryption = {
  encrypt: async (bytes) => flip(bytes),
  decrypt: async (bytes) => flip(bytes),
}

export const failing: Encryption = {
  encrypt: () => {
    throw new Error('no key to encrypt with')
  },
  decrypt: () => {
    throw new Error('no such key')
  },
}

const IV_BYTES = 12
const TAG_BYTES = 16

/** AES-256-GCM as in the documentation. `bound: false` ignores the associated data. */
export function aesGcm(key: Uint8Array = randomBytes(32), { bound = true } = {}): Encryption {
  return {
    encrypt(plain, { associatedData }) {
      const iv = randomBytes(IV_BYTES)
      const cipher = createCipheriv('aes-256-gcm', key, iv)
      if (bound) cipher.setAAD(associatedData)
      const encrypted = Buffer.concat([cipher.update(plain), cipher.final()])
      return Buffer.concat([iv, cipher.getAuthTag(), encrypted])
    },
    decrypt(bytes, { associatedData }) {
      const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, IV_BYTES), {
        authTagLength: TAG_BYTES,
      })
      if (bound) decipher.setAAD(associatedData)
      decipher.setAuthTag(bytes.subarray(IV_BYTES, IV_BYTES + TAG_BYTES))
      const plain = decipher.update(bytes.subarray(IV_BYTES + TAG_BYTES))
      return Buffer.concat([plain, decipher.final()])
    },
  }
}
