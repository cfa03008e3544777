import type { Outbox } from 'oncekey/durable'
import type { Database } from './database/database.ts'
import type { ProviderEffects } from './provider/provider-effects.ts'

/** Dependencies of the operations. */
export interface OperationParts {
  readonly database: Database
  readonly outbox: Outbox
  readonly effects: ProviderEffects
}
