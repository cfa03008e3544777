export { aesKeyring } from './aes-keyring.ts'
export { envelopeKeyring } from './envelope-keyring.ts'
export { keyIdOf } from './value-header.ts'
export type { AesKeyring, AesKeyringOptions } from './aes-keyring.ts'
export type { EnvelopeKeyring } from './envelope-keyring.ts'
export type {
  EnvelopeCacheOptions,
  EnvelopeKeyringOptions,
  KeyServiceCall,
} from './envelope-options.ts'
