import type { Express, RequestHandler } from 'express'
import type { MessageHandler, Operation } from 'oncekey/durable'
import type { IdempotencyMiddleware } from 'oncekey/express'
import type { OperationParts } from './operation-parts.ts'
import type { ProviderEffects } from './provider/provider-effects.ts'

/**
 * Additions of another program to the service. The chaos runs add misbehaving work, which shares
 * the worker, the relay and the reconciler with all other work.
 */
export interface Extension {
  /** Replaces the effects that operations use. */
  readonly effects: (own: ProviderEffects) => ProviderEffects
  readonly operations: (parts: OperationParts) => AddedOperations
  readonly topics: Readonly<Record<string, MessageHandler>>
}

export interface AddedOperations {
  readonly operations: readonly Operation<never>[]
  /** Adds their routes after the authentication. */
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
