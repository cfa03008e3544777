import { readList } from './variables.ts'

/** The owner of a bearer token. */
export interface Caller {
  readonly tenant: string
  /** The user within the tenant, who has separate keys. */
  readonly user: string
  /** Signs the requests of this token, and is never sent. `undefined`: requests are not signed. */
  readonly signingSecret: string | undefined
}

export type Callers = ReadonlyMap<string, Caller>

/** Published tokens, for a demo on one machine. */
const DEMO_TOKENS = 'demo-a=tenant-a:ada,demo-b=tenant-b:ben'
const DEMO = /^demo-[ab]$/

/** With a published secret, any caller can report that a payment was made. */
const DEMO_WEBHOOK_SECRET = 'demo-webhook-secret'

/** A shorter secret can be found by trying. */
const SECRET_LENGTH_MIN = 16

/**
 * The callers by their tokens. `real` says why the process must not accept published secrets, and
 * is `undefined` for a demo.
 */
export function readCallers(env: NodeJS.ProcessEnv, real: string | undefined): Callers {
  const given = env['TOKENS'] ?? ''
  if (given === '' && real !== undefined) {
    throw new Error(
      `TOKENS must be set with ${real}, because the demo tokens are public: set it to ` +
        '"token=tenant:user,…".',
    )
  }
  const secrets = readSigningSecrets(env)
  const callers = new Map<string, Caller>()
  for (const pair of readList({ TOKENS: given || DEMO_TOKENS }, 'TOKENS')) {
    const [, token, tenant, user] =
      /^([^=\s]+)=([^=:\s]{1,64})(?::([^=:\s]{1,64}))?$/.exec(pair) ?? []
    if (token === undefined || tenant === undefined) {
      throw new Error(
        'TOKENS must be like "token=tenant:user,other=tenant", got a part without "=" or a name.',
      )
    }
    if (real !== undefined && DEMO.test(token)) {
      throw new Error(
        `TOKENS contains "${token}", which is public and must not be used with ${real}: ` +
          'set a secret token.',
      )
    }
    // Without a user, the whole tenant counts as one user. A new token must not make other keys.
    callers.set(token, { tenant, user: user ?? tenant, signingSecret: secrets.get(token) })
  }
  if ([...secrets.keys()].some((token) => !callers.has(token))) {
    throw new Error('SIGNING_SECRETS has a secret for a token that is not in TOKENS.')
  }
  return callers
}

export function readWebhookSecret(env: NodeJS.ProcessEnv, real: string | undefined): string {
  const secret = env['WEBHOOK_SECRET'] || DEMO_WEBHOOK_SECRET
  if (real === undefined || secret !== DEMO_WEBHOOK_SECRET) return secret
  throw new Error(
    `WEBHOOK_SECRET must be set with ${real}, because the demo secret is public: set it to the ` +
      'secret of your provider.',
  )
}

/** `token=secret,…`. No message contains a secret. */
function readSigningSecrets(env: NodeJS.ProcessEnv): ReadonlyMap<string, string> {
  const secrets = new Map<string, string>()
  for (const pair of readList(env, 'SIGNING_SECRETS')) {
    const [, token, secret] = /^([^=\s]+)=(\S+)$/.exec(pair) ?? []
    if (token === undefined || secret === undefined || secret.length < SECRET_LENGTH_MIN) {
      throw new Error(
        'SIGNING_SECRETS must be like "token=secret,other=secret", each secret with at least ' +
          `${SECRET_LENGTH_MIN} characters.`,
      )
    }
    secrets.set(token, secret)
  }
  return secrets
}
