import type { Express, RequestHandler } from 'express'
import type { MessageHandler, Operation } from 'oncekey/durable'
import type { IdempotencyMiddleware } from 'oncekey/express'
import type { OperationParts } from './operation-parts.ts'
import type { ProviderEffects } from './provider-effects.ts'

/**
 * What another program adds to the service. The chaos runs add work that misbehaves; it shares the
 * worker, the relay and the reconciler with everything else.
 */
export interface Extension {
  /** The effects that operations use, in place of those of the service. */
  readonly effects: (own: ProviderEffects) => ProviderEffects
  readonly operations: (parts: OperationParts) => AddedOperations
  readonly topics: Readonly<Record<string, MessageHandler>>
}

export interface AddedOperations {
  readonly operations: readonly Operation<never>[]
  /** Adds their routes, behind the authentication. */
  readonly mount: (app: Express, parts: RouteParts) => void
}

export interface RouteParts {
  readonly json: RequestHandler
  readonly guard: IdempotencyMiddleware
}

export const NO_EXTENSION: Extension = {
  effects: (own) => own,
  operations: () => ({ operations: [], mount: () => undefined }),
  topics: {},
}
