/** What encryption adds to a stored reply: no store and no request, only the cipher. */
import { createCipheriv, createDecipheriv, createSecretKey, randomBytes } from 'node:crypto'
import type { Encryption, EncryptionContext } from '../../src/core/encryption.ts'
import { aesKeyring } from '../../src/encryption/index.ts'
import type { Figures } from '../report/results.ts'
import type { Load, Program } from '../run/contract.ts'
import { measure } from '../run/measure.ts'
import { expectEqual } from '../run/subject.ts'
import { SCOPE } from '../run/work.ts'

export interface EncryptionConfig {
  readonly kind: 'aes-keyring' | 'one-key'
}

/** A reply with its headers. */
const PLAIN = randomBytes(2_048)
/** Reading the time takes as long as a small part of one value, so it is read for many. */
const VALUES_IN_CALL = 100

const CONTEXT: EncryptionContext = {
  ...SCOPE,
  purpose: 'reply',
  identity: 'f'.repeat(32),
  recordId: '01890a5d-ac96-774b-bcce-b302099a8057',
  associatedData: Buffer.from(`oncekey:reply:2:${'f'.repeat(32)}:${'0'.repeat(36)}`),
}

export async function open({ kind }: EncryptionConfig): Promise<Program> {
  const encryption = kind === 'one-key' ? oneKey() : keyring()
  const encrypted = bytesOf(encryption.encrypt(PLAIN, CONTEXT))
  const decrypted = bytesOf(encryption.decrypt(encrypted, CONTEXT))
  expectEqual('decrypted bytes', Buffer.compare(PLAIN, decrypted), 0)
  return {
    calls: {
      encrypt: (load: Load) => measureValues(() => encryption.encrypt(PLAIN, CONTEXT), load),
      decrypt: (load: Load) => measureValues(() => encryption.decrypt(encrypted, CONTEXT), load),
    },
    close: async () => undefined,
  }
}

function keyring(): Encryption {
  return aesKeyring({ keys: { '2026-01': randomBytes(32) }, current: '2026-01' })
}

/** The same cipher with one key for all values, and nothing before the ciphertext but a nonce. */
function oneKey(): Encryption {
  const key = createSecretKey(randomBytes(32))
  return {
    encrypt(plain, { associatedData }) {
      const nonce = randomBytes(12)
      const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(associatedData)
      return Buffer.concat([nonce, cipher.update(plain), cipher.final(), cipher.getAuthTag()])
    },
    decrypt(bytes, { associatedData }) {
      const options = { authTagLength: 16 }
      const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, 12), options)
      decipher.setAAD(associatedData).setAuthTag(bytes.subarray(-16))
      return Buffer.concat([decipher.update(bytes.subarray(12, -16)), decipher.final()])
    },
  }
}

function bytesOf(bytes: ReturnType<Encryption['encrypt']>): Uint8Array {
  if (bytes instanceof Promise) throw new Error('a keyring in memory must answer at once')
  return bytes
}

async function measureValues(once: () => unknown, load: Load): Promise<Figures> {
  const many = async () => {
    for (let n = 0; n < VALUES_IN_CALL; n++) once()
  }
  const { rate = 0, p50 = 0, p99 = 0, cpu = 0 } = await measure(many, load)
  return {
    rate: rate * VALUES_IN_CALL,
    p50: p50 / VALUES_IN_CALL,
    p99: p99 / VALUES_IN_CALL,
    cpu: cpu / VALUES_IN_CALL,
  }
}
