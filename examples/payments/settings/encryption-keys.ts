import { readList, readNumber } from './variables.ts'

/** The keys that encrypt what is stored. */
export interface EncryptionKeys {
  /** By their ids. A key stays here until no stored value needs it. */
  readonly keys: Readonly<Record<string, Uint8Array>>
  /** The id of the key for new values. */
  readonly current: string
  /** Refuses stored values that are not encrypted. */
  readonly isRequired: boolean
}

/** AES-256. */
const KEY_BYTES = 32

const FORM =
  'ENCRYPTION_KEYS must be like "id:key,other:key", each key with 32 bytes in base64 ' +
  '(openssl rand -base64 32), each id once.'

/** As the engine requires. A shorter secret could be found by trying. */
const HASH_SECRET_LENGTH_MIN = 32

/** The first secret makes new hashes; the others are kept until their records have expired. */
export function readKeyHashSecrets(env: NodeJS.ProcessEnv): readonly string[] {
  const secrets = readList(env, 'KEY_HASH_SECRETS')
  if (secrets.every((secret) => secret.length >= HASH_SECRET_LENGTH_MIN)) return secrets
  throw new Error(
    'KEY_HASH_SECRETS must be like "secret,earlier secret", each with at least ' +
      `${HASH_SECRET_LENGTH_MIN} characters (openssl rand -hex 32).`,
  )
}

/** `undefined` without ENCRYPTION_KEYS. No message contains a key. */
export function readEncryptionKeys(env: NodeJS.ProcessEnv): EncryptionKeys | undefined {
  const keys = new Map<string, Uint8Array>()
  for (const pair of readList(env, 'ENCRYPTION_KEYS')) {
    const [, id, key] = /^([A-Za-z0-9][\w.-]{0,63}):([A-Za-z0-9+/]+={0,2})$/.exec(pair) ?? []
    const bytes = Buffer.from(key ?? '', 'base64')
    if (id === undefined || bytes.length !== KEY_BYTES || keys.has(id)) throw new Error(FORM)
    keys.set(id, bytes)
  }
  const ids = [...keys.keys()]
  const given = env['ENCRYPTION_CURRENT'] ?? ''
  const isRequired = readNumber(env, 'ENCRYPTION_REQUIRED', { fallback: 0, min: 0, max: 1 }) === 1
  if (ids.length === 0) {
    if (given === '' && !isRequired) return undefined
    const name = isRequired ? 'ENCRYPTION_REQUIRED' : 'ENCRYPTION_CURRENT'
    throw new Error(`${name} needs ENCRYPTION_KEYS.`)
  }
  // With one key there is no choice. With several, a wrong guess would stop a rotation.
  const current = given === '' && ids.length === 1 ? ids[0]! : given
  if (keys.has(current)) return { keys: Object.fromEntries(keys), current, isRequired }
  throw new Error(
    `ENCRYPTION_CURRENT must be the id of one of ENCRYPTION_KEYS (${ids.join(', ')}), got ` +
      `${JSON.stringify(given)}.`,
  )
}
