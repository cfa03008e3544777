import type { Engine } from '../../core/engine/engine-contract.ts'
import type { PlacesStats } from '../places/places.ts'

/** A message as its handler receives it. */
export interface RelayMessage<Payload = unknown> {
  /** The id that `outbox.add` returned: a UUID. */
  readonly id: string
  /** The topic to which the message was added. */
  readonly topic: string
  /** The tenant of the message; `undefined` if it has none. */
  readonly tenant: string | undefined
  /** The subject of the message, such as an order id; `undefined` if it has none. */
  readonly key: string | undefined
  /** The partition of the message; `undefined` if it may be relayed in any order. */
  readonly partition: string | undefined
  /** The payload that was added: a JSON value, bytes or `undefined`. */
  readonly payload: Payload
  /** From 1. Counts every claim by a relay, including those whose process crashed. */
  readonly attempt: number
  /** The id that an earlier attempt passed to `note`: the receiver already has the message. */
  readonly providerId: string | undefined
  /**
   * The same on every attempt, at most 64 characters. Send it, so that the receiver sees repeats.
   */
  readonly downstreamKey: string
  /** When the message was added, by the store's clock. */
  readonly createdAt: Date
  /** Aborts after `handlerTimeoutMs`, when the lease is lost, and when `close` gives up waiting. */
  readonly signal: AbortSignal
  /**
   * Records the receiver's id of the message before the handler ends. If the process crashes after
   * that, the next attempt gets it as `providerId`. Rejects with `LEASE_LOST` if another relay has
   * the message.
   */
  note(providerId: string): Promise<void>
}

/**
 * The result of a handler. No value, or no `kind`, means `done`. `dead_letter` means that the
 * receiver will never accept the message, so that it is not tried again.
 */
export type RelayResult =
  | { readonly kind?: 'done'; readonly providerId?: string | undefined }
  | { readonly kind: 'dead_letter'; readonly error: unknown }

interface HandlerMethod<Payload> {
  handle(message: RelayMessage<Payload>): RelayResult | void | Promise<RelayResult | void>
}

/**
 * Delivers one message to its receiver. If it throws or rejects, the message is tried again later.
 * It must tolerate repeats: a message is delivered at least once.
 *
 * The type is that of a method, so that a handler may declare the payload it expects.
 */
export type MessageHandler<Payload = unknown> = HandlerMethod<Payload>['handle']

/** The pauses between the attempts of a message. */
export interface Backoff {
  /** The longest pause after the first failure, 1 ms to a day. Doubles with every failure. */
  readonly firstMs: number
  /** The limit of the doubling: from `firstMs` to a day. */
  readonly maxMs: number
}

export interface RelayOptions {
  /** The engine whose store keeps the messages: SQLite, PostgreSQL, MySQL or MariaDB. */
  engine: Engine

  /** A handler for each topic, 1 to 1,000. Messages of other topics are left to other relays. */
  topics: Readonly<Record<string, MessageHandler>>

  /**
   * How many handlers run at the same time. As many messages are claimed in advance (more if
   * handlers are quicker than the store), so that a free place does not wait for the store. A
   * higher number has more throughput, and leaves fewer messages for relays of other processes.
   * `reserve` comes on top. From 1 to 10_000.
   *
   * @default 50
   */
  concurrency?: number

  /**
   * How many handlers of one topic run at the same time. Lower it for a slow receiver, so that more
   * of `concurrency` is left for other topics. With a limit, the relay claims at most that many
   * messages of the topic in advance, beyond those that may run. From 1 to 10_000, or to the
   * default if that is larger.
   *
   * @default `concurrency` + `reserve`
   */
  perTopic?: number

  /**
   * How many handlers for messages of one tenant run at the same time. Messages without a tenant
   * count as one tenant. A lower limit leaves more room for other tenants, and leaves places empty
   * while only one tenant has messages. From 1 to 10_000, or to the default if that is larger.
   *
   * @default `concurrency` + `reserve`
   */
  perTenant?: number

  /**
   * Places in addition to `concurrency`: half of them for tenants without a running handler here,
   * the rest for topics without one. With it, slow handlers of one tenant or one topic do not delay
   * the others. 0 makes `concurrency` a hard limit. From 0 to 10_000.
   *
   * @default 40 % of `concurrency`, at least 2
   */
  reserve?: number

  /**
   * The most messages in one claim. Larger batches need fewer store calls and more memory. From 1
   * to 1_000.
   *
   * @default 200
   */
  batchSize?: number

  /**
   * How long a claim of a message lasts without renewal. It is renewed while the handler runs. A
   * shorter lease frees the messages of a crashed relay sooner; a longer one survives a longer
   * failure of the store. From 100 to 86_400_000 (a day).
   *
   * @default 30_000
   */
  leaseMs?: number

  /**
   * How often to query for messages that no event reports: delayed ones, those to be tried again,
   * and those of other processes if the store cannot report commits. Shorter finds them sooner and
   * costs more queries. From 1 to 30_000.
   *
   * @default 1_000
   */
  pollMs?: number

  /**
   * How many attempts a message has before it becomes a dead letter. With the default `backoff`, 20
   * attempts take about an hour and a quarter. From 1 to 1_000.
   *
   * @default 20
   */
  maxAttempts?: number

  /**
   * The pause before the next attempt: a random time between zero and `firstMs`, which doubles with
   * every attempt up to `maxMs`. Longer pauses spare a receiver that is down and delay the message.
   *
   * @default `firstMs`: 1_000. `maxMs`: 900_000, or `firstMs` if that is longer
   */
  backoff?: Partial<Backoff>

  /**
   * How a dead letter affects its partition. `block` keeps the order: later messages wait
   * until an operator retries or drops it. `skip` relays later messages without it.
   *
   * @default 'block'
   */
  onDeadLetter?: 'block' | 'skip'

  /**
   * How long a handler may take. Then its signal aborts, the attempt has failed, and another
   * message gets its place. A longer limit lets slow receivers answer; a shorter one frees places
   * sooner. From 1 to 86_400_000 (a day).
   *
   * A handler that ignores its signal is counted and reported (`work_overdue`), and this relay does
   * not handle its message again while it runs. A topic with as many of these as `concurrency`, and
   * at least 10, is paused (`work_paused`) until one of them ends, or until a trial message, one
   * every five minutes, ends in time (`work_resumed`). Other topics continue.
   *
   * @default 60_000
   */
  handlerTimeoutMs?: number

  /** Random numbers from 0 up to, but not including, 1. For tests. @default Math.random */
  random?: () => number
}

/** The messages of one pass, by their outcome. */
export interface RelayReport {
  /** Messages that were delivered, and whose delivery is recorded. */
  readonly relayed: number
  /** Messages whose handler failed; they are tried again later. */
  readonly retried: number
  /** Messages that became dead letters. */
  readonly dead: number
  /** Messages whose lease was lost; another relay may have them. */
  readonly lost: number
}

export interface RelayStats extends PlacesStats {
  /** Messages that are claimed and whose handler has not started. */
  readonly waiting: number
}

export interface RelayCloseReport {
  /** Handlers that still ran after the grace time: their messages are delivered again. */
  readonly abandoned: number
}

/** Delivers the messages of an outbox. Any number of relays may run, in any processes. */
export interface Relay {
  /**
   * Relays messages until `signal` aborts, `close` is called, or the engine is closed. Then it
   * claims no more, returns messages that have not started, waits for running handlers, and
   * resolves. A store failure is emitted as `store_error`, and the call is repeated.
   */
  run(signal?: AbortSignal): Promise<void>

  /**
   * Runs one pass: claims due messages, at most as many as it has room for, and resolves when each
   * of them is relayed, to be retried, or dead. Rejects with `STORE_FAILED` if the claim fails.
   */
  runOnce(): Promise<RelayReport>

  /** Running handlers, handlers past their time limit, waiting messages and paused topics. */
  stats(): RelayStats

  /**
   * Claims no more messages, returns those that have not started, and waits for running handlers,
   * at most for `graceMs`. Then it aborts the signals of the handlers that still run; their
   * messages are delivered again when their lease is over. Call it before `engine.close()`.
   * `graceMs` is from 0 to 86_400_000 (a day).
   *
   * @default graceMs 10_000
   */
  close(options?: { graceMs?: number }): Promise<RelayCloseReport>
}
