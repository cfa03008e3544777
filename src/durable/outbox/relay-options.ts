import type { OutboxStore } from '../../core/store/durable-store.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import {
  describe,
  oneOf,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../core/options.ts'
import { DAY_MS, MINUTE_MS } from '../../core/time/durations.ts'
import { faultOf } from './message-checks.ts'
import { outboxOf } from './outbox.ts'
import { resolvePlaces, type PlaceLimits } from '../places/place-options.ts'
import type { Backoff, MessageHandler, RelayOptions } from './relay-contract.ts'

export interface ResolvedRelayOptions {
  readonly engine: Engine
  readonly outbox: OutboxStore
  readonly handlers: ReadonlyMap<string, MessageHandler>
  readonly places: PlaceLimits
  readonly batchSize: number
  readonly leaseMs: number
  readonly pollMs: number
  readonly maxAttempts: number
  readonly backoff: Backoff
  readonly onDeadLetter: 'block' | 'skip'
  readonly handlerTimeoutMs: number
  readonly random: () => number
}

const RELAY_OPTION_NAMES = [
  'engine',
  'topics',
  'concurrency',
  'perTopic',
  'perTenant',
  'reserve',
  'batchSize',
  'leaseMs',
  'pollMs',
  'maxAttempts',
  'backoff',
  'onDeadLetter',
  'handlerTimeoutMs',
  'random',
] as const satisfies readonly (keyof RelayOptions)[]

const PLACES = { fallback: 50, max: 10_000, perGroup: 'perTopic' }

/** Every claim sends the names of all topics. */
const TOPICS_MAX = 1_000

export function resolveRelayOptions(options: RelayOptions): ResolvedRelayOptions {
  rejectUnknownOptions('createRelay', options, RELAY_OPTION_NAMES)
  const { engine, topics, onDeadLetter, random } = options
  const { concurrency, perTopic: perGroup, perTenant, reserve } = options
  const placeOptions = { concurrency, perGroup, perTenant, reserve }
  const number = (
    name: 'batchSize' | 'leaseMs' | 'pollMs' | 'maxAttempts' | 'handlerTimeoutMs',
    bounds: { readonly fallback: number; readonly min: number; readonly max: number },
  ): number => wholeNumber(`createRelay.${name}`, options[name], bounds)
  optionalFunction('createRelay.random', random)
  return {
    engine,
    outbox: outboxOf(engine, 'createRelay'),
    handlers: checkTopics(topics),
    places: resolvePlaces('createRelay', placeOptions, PLACES),
    batchSize: number('batchSize', { fallback: 200, min: 1, max: 1_000 }),
    // A shorter lease could end before a store under load has answered.
    leaseMs: number('leaseMs', { fallback: 30_000, min: 100, max: DAY_MS }),
    // A store may stop reporting commits to a relay that has not queried for a minute.
    pollMs: number('pollMs', { fallback: 1_000, min: 1, max: 30_000 }),
    maxAttempts: number('maxAttempts', { fallback: 20, min: 1, max: 1_000 }),
    backoff: resolveBackoff(options.backoff),
    onDeadLetter: oneOf('createRelay.onDeadLetter', onDeadLetter, {
      fallback: 'block',
      words: ['block', 'skip'],
    }),
    handlerTimeoutMs: number('handlerTimeoutMs', { fallback: MINUTE_MS, min: 1, max: DAY_MS }),
    random: random ?? Math.random,
  }
}

function checkTopics(topics: RelayOptions['topics']): ReadonlyMap<string, MessageHandler> {
  if (topics === null || typeof topics !== 'object') {
    throw new InvalidOptionsError(
      `createRelay.topics must be an object of handlers, got ${describe(topics)}`,
    )
  }
  const handlers = new Map(Object.entries(topics))
  if (handlers.size === 0 || handlers.size > TOPICS_MAX) {
    throw new InvalidOptionsError(
      `createRelay.topics must have 1 to ${TOPICS_MAX} topics, got ${handlers.size}`,
    )
  }
  for (const [topic, handler] of handlers) {
    const fault = faultOf(topic)
    if (fault !== undefined) {
      throw new InvalidOptionsError(`a name in createRelay.topics ${fault}`)
    }
    if (typeof handler !== 'function') {
      throw new InvalidOptionsError(
        `createRelay.topics["${topic}"] must be a function, got ${describe(handler)}`,
      )
    }
  }
  return handlers
}

function resolveBackoff(backoff: RelayOptions['backoff'] = {}): Backoff {
  rejectUnknownOptions('createRelay.backoff', backoff, ['firstMs', 'maxMs'])
  const bounds = { min: 1, max: DAY_MS }
  const firstMs = wholeNumber('createRelay.backoff.firstMs', backoff.firstMs, {
    ...bounds,
    fallback: 1_000,
  })
  const maxMs = wholeNumber('createRelay.backoff.maxMs', backoff.maxMs, {
    ...bounds,
    fallback: Math.max(firstMs, 15 * MINUTE_MS),
  })
  if (maxMs >= firstMs) return { firstMs, maxMs }
  throw new InvalidOptionsError(
    `createRelay.backoff.maxMs (${maxMs}) must not be less than firstMs (${firstMs})`,
  )
}
