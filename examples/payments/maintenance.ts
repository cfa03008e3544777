import type { Engine } from 'oncekey'
import {
  createMaintenance,
  createRelay,
  createWorker,
  type Maintenance,
  type Operation,
  type Reconciler,
} from 'oncekey/durable'
import type { Database } from './database/database.ts'
import type { Extension } from './extension.ts'
import { GRACE_MS } from './grace.ts'
import { compareWithProvider } from './ledger.ts'
import type { ProviderClient } from './provider-client.ts'
import { RECEIPT_TOPIC, sendReceipt } from './receipts.ts'
import type { Settings } from './settings.ts'

export interface MaintenanceParts {
  readonly engine: Engine
  readonly database: Database
  readonly operations: readonly Operation<never>[]
  readonly topics: Extension['topics']
  readonly provider: ProviderClient
  readonly reconciler: Reconciler
  readonly settings: Pick<Settings, 'leaseMs' | 'retentionMs' | 'sweepEveryMs' | 'handlerTimeoutMs'>
}

const HOUR_MS = 60 * 60_000
/** Messages are kept for a week where replies are kept for a day. */
const MESSAGES_PER_RETENTION = 7

/** Everything beside the requests. Any number of processes may do it at the same time. */
export function createBackgroundWork(parts: MaintenanceParts): Maintenance {
  const { engine, database, operations, topics, provider, reconciler, settings } = parts
  const tidyMs = Math.min(HOUR_MS, settings.retentionMs)
  return createMaintenance({
    engine,
    // Goes on with what was accepted, and with what its client or its process left behind.
    worker: createWorker({ engine, operations }),
    // Asks the provider about what nobody knows.
    reconciler,
    // Hands on the receipts that payments have left in the outbox.
    relay: createRelay({
      engine,
      topics: { ...topics, [RECEIPT_TOPIC]: sendReceipt(database) },
      leaseMs: settings.leaseMs,
      handlerTimeoutMs: settings.handlerTimeoutMs,
    }),
    // Finds what all of these have missed.
    ledgers: [compareWithProvider({ engine, database, provider })],
    every: { sweepMs: settings.sweepEveryMs, reapMs: tidyMs, pruneMs: tidyMs },
    keepMessagesMs: MESSAGES_PER_RETENTION * settings.retentionMs,
    graceMs: GRACE_MS,
  })
}
