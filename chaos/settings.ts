/**
 * Times and probabilities of a run. Times are short, so that a run of seconds covers what a service
 * sees in days. Each comment states the condition that a time must satisfy.
 */
import type { Faults } from '../examples/provider/contract.ts'
import type { PlantName } from './plant/plants.ts'

export interface RunSettings {
  /** Environment of every process of the service. */
  readonly service: Readonly<Record<string, string>>
  readonly keyRetentionMs: number
  readonly faults: Faults
}

export const LEASE_MS = 1_500

/** Longer than any lease; together with later delays far below `PROVEN_AFTER_MS`. */
export const STALL_MS = { min: LEASE_MS + 200, max: LEASE_MS + 900 } as const

/**
 * Shorter and longer than the 5 s timeout of a node for its database. Requests to a silent provider
 * can arrive later, by as much as `PROVEN_AFTER_MS` has to cover.
 */
export const SILENCE_MS = { min: 300, max: 7_000, providerMax: 1_500 } as const

const LATENCY_MAX_MS = 200
const LATE_MAX_MS = 700

/**
 * The longest time between the record of a request and its arrival at the provider: the answer of
 * the database was lost, and the record was confirmed up to 5 s later; the process was stalled; the
 * network was silent; and the provider was late. "Not found" is no proof before that.
 */
const PROVEN_AFTER_MS = 12_000

/** A repeat within this time must be recognised, even from a process that was stalled. */
const REPEATABLE_MS = 800

/** After this time the provider recognises no key: a blind repeat is a second charge. */
const KEY_RETENTION_MS = 6_000

const FAULTS: Faults = {
  latency: 0.3,
  refuse: 0.04,
  dropRequest: 0.04,
  refuseQuery: 0.05,
  effectThenDrop: 0.05,
  effectThen500: 0.05,
  lateSuccess: 0.05,
  duplicateWebhook: 0.2,
  lostWebhook: 0.3,
  webhookOutOfOrder: 0.2,
  latencyMaxMs: LATENCY_MAX_MS,
  lateMaxMs: LATE_MAX_MS,
}

export function settingsFor(plant: PlantName | undefined): RunSettings {
  const service = {
    LEASE_MS: `${LEASE_MS}`,
    SWEEP_EVERY_MS: '500',
    PROVIDER_TIMEOUT_MS: '1000',
    HANDLER_TIMEOUT_MS: '2000',
    PROVEN_AFTER_MS: `${PROVEN_AFTER_MS}`,
    RECONCILE_FIRST_MS: '500',
    REPEATABLE_MS: `${REPEATABLE_MS}`,
    // A run sends as much as the machine can answer.
    NEW_KEYS_PER_SECOND: '0',
    LOOK_UPS_PER_SECOND: '0',
    WEBHOOK_SECRET: 'chaos-webhook-secret',
  }
  const usual = { service, keyRetentionMs: KEY_RETENTION_MS, faults: FAULTS }
  if (plant !== 'lapse-reruns-effect') return usual
  // A lease is shorter than the time that a provider usually remembers keys. Here it remembers
  // none, so the service must not rely on it.
  return { ...usual, service: { ...service, REPEATABLE_MS: '1' }, keyRetentionMs: 1 }
}
