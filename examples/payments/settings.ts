import type { Faults } from '../provider/contract.ts'
import { parseFaults } from '../provider/faults.ts'
import { readCallers, readWebhookSecret, type Callers } from './settings/callers.ts'
import {
  readEncryptionKeys,
  readKeyHashSecrets,
  type EncryptionKeys,
} from './settings/encryption-keys.ts'
import { readNumber, readPort, readUrl } from './settings/variables.ts'

/** The role of a process. `all` does everything, for one machine and for demos. */
const ROLES = ['all', 'api', 'worker'] as const

export type Role = (typeof ROLES)[number]

export interface Settings {
  readonly role: Role
  /** 0 means any free port. */
  readonly port: number
  readonly dataFolder: string
  /** Empty for a SQLite file in the data folder. */
  readonly databaseUrl: string
  /** How long to wait at the start for a database that does not answer. */
  readonly databaseWaitMs: number
  /** Empty for no cache. */
  readonly redisUrl: string
  /** Empty for the built-in simulator. */
  readonly providerUrl: string
  /** The faults of the built-in simulator, and their probabilities. */
  readonly faults: Faults
  readonly webhookSecret: string
  /** The callers by their bearer tokens. */
  readonly callers: Callers
  /** Whether the callers are those of the demo, whose tokens are public. */
  readonly isDemo: boolean
  /** New keys per second of one tenant. 0 means no limit. */
  readonly newKeysPerSecond: number
  /** Replays, conflicts and status requests per second of one user. 0 means no limit. */
  readonly lookUpsPerSecond: number
  /** Requests of one tenant that run at the same time on each node. 0 means no limit. */
  readonly inFlightMax: number
  /** The maximum time for a request to arrive. */
  readonly requestTimeoutMs: number
  /** The maximum age of a request, by the time that its client has signed. 0 means any age. */
  readonly maxRequestAgeMs: number
  /** How long a reply is replayed. */
  readonly retentionMs: number
  /** How long after the retention a late retry is refused. 0 means not at all. */
  readonly refuseLateMs: number
  /** Encrypts what is stored. `undefined`: stored plain. */
  readonly encryptionKeys: EncryptionKeys | undefined
  /** Hashes the keys of clients before they are stored. Empty: stored plain. */
  readonly keyHashSecrets: readonly string[]
  readonly leaseMs: number
  readonly sweepEveryMs: number
  readonly providerTimeoutMs: number
  /** The maximum time of a message handler. */
  readonly handlerTimeoutMs: number
  /** After this time, a request that the provider does not know will never reach it. */
  readonly notFoundIsFinalAfterMs: number
  readonly reconcileFirstMs: number
  /** The time in which the provider certainly recognises an idempotency key. */
  readonly repeatableMs: number
}

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS

const PER_SECOND_MAX = 1_000_000

/** Throws an error with one sentence. An empty variable counts as not set. */
export function readSettings(env: NodeJS.ProcessEnv): Settings {
  const ms = (name: string, fallback: number, min = 1, max = DAY_MS) =>
    readNumber(env, name, { fallback, min, max })
  const count = (name: string, fallback: number) =>
    readNumber(env, name, { fallback, min: 0, max: PER_SECOND_MAX })
  const role = readRole(env['ROLE'])
  const real = reasonAgainstDemo(env, role)
  const settings: Settings = {
    role,
    port: readPort(env['PORT']),
    dataFolder: env['DATA_DIR'] || './data',
    databaseUrl: readUrl(env, 'DATABASE_URL', ['postgres', 'postgresql', 'mysql']),
    databaseWaitMs: ms('DATABASE_WAIT_MS', 30_000, 0),
    redisUrl: readUrl(env, 'REDIS_URL', ['redis', 'rediss']),
    providerUrl: readProviderUrl(env, real),
    faults: readFaults(env['FAULTS'] ?? ''),
    webhookSecret: readWebhookSecret(env, real),
    callers: readCallers(env, real),
    isDemo: (env['TOKENS'] ?? '') === '',
    // More than a client needs, and few enough for the database: a tenant that uses them all has
    // 8.6 million keys after a day.
    newKeysPerSecond: count('NEW_KEYS_PER_SECOND', 100),
    lookUpsPerSecond: count('LOOK_UPS_PER_SECOND', 100),
    inFlightMax: count('IN_FLIGHT_MAX', 200),
    requestTimeoutMs: ms('REQUEST_TIMEOUT_MS', 30_000, 100),
    maxRequestAgeMs: ms('MAX_REQUEST_AGE_MS', 0, 0),
    retentionMs: ms('RETENTION_MS', DAY_MS, 1_000),
    refuseLateMs: ms('REFUSE_LATE_MS', 30 * DAY_MS, 0, 3650 * DAY_MS),
    encryptionKeys: readEncryptionKeys(env),
    keyHashSecrets: readKeyHashSecrets(env),
    leaseMs: ms('LEASE_MS', MINUTE_MS, 100),
    sweepEveryMs: ms('SWEEP_EVERY_MS', MINUTE_MS, 10),
    providerTimeoutMs: ms('PROVIDER_TIMEOUT_MS', 10_000),
    handlerTimeoutMs: ms('HANDLER_TIMEOUT_MS', MINUTE_MS),
    notFoundIsFinalAfterMs: ms('PROVEN_AFTER_MS', 15 * MINUTE_MS),
    reconcileFirstMs: ms('RECONCILE_FIRST_MS', 10_000),
    repeatableMs: ms('REPEATABLE_MS', 12 * HOUR_MS),
  }
  checkRequestAge(settings)
  return settings
}

function readRole(given: string | undefined): Role {
  const role = given || 'all'
  const known = ROLES.find((name) => name === role)
  if (known !== undefined) return known
  throw new Error(`ROLE must be ${ROLES.join(', ')} or empty, got ${JSON.stringify(given)}.`)
}

/** Why the process must not use published secrets. `undefined`: it is a demo, or a test. */
function reasonAgainstDemo(env: NodeJS.ProcessEnv, role: Role): string | undefined {
  if (env['NODE_ENV'] === 'production') return 'NODE_ENV=production'
  return role === 'all' ? undefined : `ROLE=${role}`
}

function readProviderUrl(env: NodeJS.ProcessEnv, real: string | undefined): string {
  const url = readUrl(env, 'PROVIDER_URL', ['http', 'https'])
  if (url !== '' || real === undefined) return url
  throw new Error(
    `PROVIDER_URL must be set with ${real}: the built-in simulator is for one process, and moves ` +
      'no money. Start one with "npx node examples/provider/main.ts".',
  )
}

function readFaults(given: string): Faults {
  const checked = parseFaults(given)
  if (checked.kind === 'valid') return checked.faults
  throw new Error(`FAULTS: ${checked.message}`)
}

/** A time that an attacker can change, or that outlives the record, protects nothing. */
function checkRequestAge({ maxRequestAgeMs, retentionMs, callers }: Settings): void {
  if (maxRequestAgeMs === 0) return
  if (maxRequestAgeMs > retentionMs) {
    throw new Error(
      `MAX_REQUEST_AGE_MS (${maxRequestAgeMs}) must not exceed RETENTION_MS (${retentionMs}), or ` +
        'a captured request could run again after its record has expired.',
    )
  }
  if ([...callers.values()].some(({ signingSecret }) => signingSecret === undefined)) {
    throw new Error(
      'MAX_REQUEST_AGE_MS needs SIGNING_SECRETS with a secret for each token, because a time ' +
        'that is not signed proves nothing.',
    )
  }
}
