import type { Outbox } from 'oncekey/durable'
import type { Database } from './database/database.ts'
import type { ProviderEffects } from './provider-effects.ts'

/** What operations are made of. */
export interface OperationParts {
  readonly database: Database
  readonly outbox: Outbox
  readonly effects: ProviderEffects
}
