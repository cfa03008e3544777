import type { EngineOptions } from 'oncekey'
import { aesKeyring } from 'oncekey/encryption'
import type { Settings } from './settings.ts'

type StoredData = Pick<EngineOptions, 'encryption' | 'requireEncryption' | 'hashKeys'>

/** How the engine stores replies, inputs, requests, messages and the keys of clients. */
export function protectStoredData({
  encryptionKeys,
  keyHashSecrets,
}: Pick<Settings, 'encryptionKeys' | 'keyHashSecrets'>): StoredData {
  const [secret, ...oldSecrets] = keyHashSecrets
  return {
    ...(encryptionKeys !== undefined && {
      encryption: aesKeyring({ keys: encryptionKeys.keys, current: encryptionKeys.current }),
      requireEncryption: encryptionKeys.isRequired,
    }),
    ...(secret !== undefined && { hashKeys: { secret, oldSecrets } }),
  }
}
