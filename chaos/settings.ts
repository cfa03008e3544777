/**
 * Times and chances of a run. Times are short, so that a run of seconds has seen what takes a
 * service days; what must hold between them is said where they are.
 */
import type { Faults } from '../examples/provider/contract.ts'
import type { PlantName } from './plant/plants.ts'

export interface RunSettings {
  /** For every process of the service. */
  readonly service: Readonly<Record<string, string>>
  readonly keyRetentionMs: number
  readonly faults: Faults
}

export const LEASE_MS = 1_500

/** Past any lease, and with what may still come after it far below `PROVEN_AFTER_MS`. */
export const STALL_MS = { min: LEASE_MS + 200, max: LEASE_MS + 900 } as const

/**
 * Shorter and longer than the 5 s that a node waits for its database. A provider that nothing
 * reaches gets some of it later, by as much as `PROVEN_AFTER_MS` has to cover.
 */
export const SILENCE_MS = { min: 300, max: 7_000, providerMax: 1_500 } as const

const LATENCY_MAX_MS = 200
const LATE_MAX_MS = 700

/**
 * A request can reach the provider that much after it was put on record: the answer of the database
 * was lost, and the record was confirmed up to 5 s later; its process was stalled in between; the
 * network was silent; and the provider was late. "Not found" is no proof before that.
 */
const PROVEN_AFTER_MS = 12_000

/** What is sent again within this time must be recognised, also by way of a process that stalls. */
const REPEATABLE_MS = 800

/** From then on the provider recognises nothing: a blind repetition is a second charge. */
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
    RATE_PER_SECOND: '0',
    WEBHOOK_SECRET: 'chaos-webhook-secret',
  }
  const usual = { service, keyRetentionMs: KEY_RETENTION_MS, faults: FAULTS }
  if (plant !== 'lapse-reruns-effect') return usual
  // A lease is shorter than what a provider usually remembers. Here it remembers nothing, and
  // nobody may rely on it.
  return { ...usual, service: { ...service, REPEATABLE_MS: '1' }, keyRetentionMs: 1 }
}
