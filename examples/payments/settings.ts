import type { Faults } from '../provider/contract.ts'
import { parseFaults } from '../provider/faults.ts'

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
  /** Tenants by their bearer token. */
  readonly tokens: ReadonlyMap<string, string>
  /** Requests per second of one tenant on each node. 0 means no limit. */
  readonly ratePerSecond: number
  /** Concurrent requests of one tenant on each node. 0 means no limit. */
  readonly inFlightMax: number
  /** The maximum time for a request to arrive. */
  readonly requestTimeoutMs: number
  /** How long a reply is replayed. */
  readonly retentionMs: number
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

/** Throws an error with one sentence. An empty variable counts as not set. */
export function readSettings(env: NodeJS.ProcessEnv): Settings {
  const ms = (name: string, fallback: number, min = 1) =>
    readNumber(env, name, { fallback, min, max: DAY_MS })
  const settings: Settings = {
    role: readRole(env['ROLE']),
    port: readPort(env['PORT']),
    dataFolder: env['DATA_DIR'] || './data',
    databaseUrl: readUrl(env, 'DATABASE_URL', ['postgres', 'postgresql', 'mysql']),
    databaseWaitMs: ms('DATABASE_WAIT_MS', 30_000, 0),
    redisUrl: readUrl(env, 'REDIS_URL', ['redis', 'rediss']),
    providerUrl: readUrl(env, 'PROVIDER_URL', ['http', 'https']),
    faults: readFaults(env['FAULTS'] ?? ''),
    // A demo secret. The owner of the secret can report that a payment was made.
    webhookSecret: env['WEBHOOK_SECRET'] || 'demo-webhook-secret',
    tokens: readTokens(env['TOKENS'] ?? ''),
    ratePerSecond: readNumber(env, 'RATE_PER_SECOND', { fallback: 0, min: 0, max: 1_000_000 }),
    inFlightMax: readNumber(env, 'IN_FLIGHT_MAX', { fallback: 200, min: 0, max: 1_000_000 }),
    requestTimeoutMs: ms('REQUEST_TIMEOUT_MS', 30_000, 100),
    retentionMs: ms('RETENTION_MS', DAY_MS, 1_000),
    leaseMs: ms('LEASE_MS', MINUTE_MS, 100),
    sweepEveryMs: ms('SWEEP_EVERY_MS', MINUTE_MS, 10),
    providerTimeoutMs: ms('PROVIDER_TIMEOUT_MS', 10_000),
    handlerTimeoutMs: ms('HANDLER_TIMEOUT_MS', MINUTE_MS),
    notFoundIsFinalAfterMs: ms('PROVEN_AFTER_MS', 15 * MINUTE_MS),
    reconcileFirstMs: ms('RECONCILE_FIRST_MS', 10_000),
    repeatableMs: ms('REPEATABLE_MS', 12 * HOUR_MS),
  }
  if (settings.providerUrl === '' && settings.role !== 'all') {
    throw new Error(
      `PROVIDER_URL must be set with ROLE=${settings.role}: the built-in simulator is for one ` +
        'process. Start one with "npx node examples/provider/main.ts".',
    )
  }
  return settings
}

function readRole(given: string | undefined): Role {
  const role = given || 'all'
  const known = ROLES.find((name) => name === role)
  if (known !== undefined) return known
  throw new Error(`ROLE must be ${ROLES.join(', ')} or empty, got ${JSON.stringify(given)}.`)
}

/** An empty PORT is a mistake in a script: a random port would not be found. */
function readPort(given = '3000'): number {
  if (/^\d{1,5}$/.test(given) && Number(given) <= 65_535) return Number(given)
  throw new Error(`PORT must be a number from 0 to 65535, got ${JSON.stringify(given)}.`)
}

interface Limits {
  readonly fallback: number
  readonly min: number
  readonly max: number
}

function readNumber(env: NodeJS.ProcessEnv, name: string, limits: Limits): number {
  const given = env[name] || String(limits.fallback)
  const { min, max } = limits
  const value = Number(given)
  if (/^\d+$/.test(given) && value >= min && value <= max) return value
  throw new Error(
    `${name} must be a whole number from ${min} to ${max}, got ${JSON.stringify(given)}.`,
  )
}

/** The message does not contain the value, which may have a password. */
function readUrl(env: NodeJS.ProcessEnv, name: string, protocols: readonly string[]): string {
  const given = env[name] ?? ''
  if (given === '') return ''
  const protocol = URL.parse(given)?.protocol.slice(0, -1)
  if (protocol !== undefined && protocols.includes(protocol)) return given
  const known = protocols.map((one) => `${one}://…`).join(' or ')
  throw new Error(`${name} must be a URL like ${known}, or empty.`)
}

function readFaults(given: string): Faults {
  const checked = parseFaults(given)
  if (checked.kind === 'valid') return checked.faults
  throw new Error(`FAULTS: ${checked.message}`)
}

/** `token=tenant,…`, in addition to the demo tokens. */
function readTokens(given: string): ReadonlyMap<string, string> {
  const tokens = new Map([
    ['demo-a', 'tenant-a'],
    ['demo-b', 'tenant-b'],
  ])
  for (const pair of given.split(',').filter((text) => text !== '')) {
    const [, token, tenant] = /^([^=\s]+)=([^=\s]{1,64})$/.exec(pair) ?? []
    if (token === undefined || tenant === undefined) {
      throw new Error(
        `TOKENS must be like "token=tenant,other=tenant", got a part without "=" or a name.`,
      )
    }
    tokens.set(token, tenant)
  }
  return tokens
}
