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
import type { ProviderClient } from './provider/provider-client.ts'
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
/** Messages are kept for a week if replies are kept for a day. */
const MESSAGES_PER_RETENTION = 7

/** All background work. Several processes may run it at the same time. */
export function createBackgroundWork(parts: MaintenanceParts): Maintenance {
  const { engine, database, operations, topics, provider, reconciler, settings } = parts
  const tidyMs = Math.min(HOUR_MS, settings.retentionMs)
  return createMaintenance({
    engine,
    // Continues accepted requests, and work that a client or a process left unfinished.
    worker: createWorker({ engine, operations }),
    // Asks the provider about unknown outcomes.
    reconciler,
    // Relays the receipts that payments have added to the outbox.
    relay: createRelay({
      engine,
      topics: { ...topics, [RECEIPT_TOPIC]: sendReceipt(database) },
      leaseMs: settings.leaseMs,
      handlerTimeoutMs: settings.handlerTimeoutMs,
    }),
    // Finds differences that all of these have missed.
    ledgers: [compareWithProvider({ engine, database, provider })],
    every: { sweepMs: settings.sweepEveryMs, reapMs: tidyMs, pruneMs: tidyMs },
    keepMessagesMs: MESSAGES_PER_RETENTION * settings.retentionMs,
    graceMs: GRACE_MS,
  })
}
