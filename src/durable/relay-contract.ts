import type { Engine } from '../core/engine-contract.ts'
import type { Backoff } from './backoff.ts'
import type { PlacesStats } from './places.ts'

/** A message as its handler gets it. */
export interface RelayMessage<Payload = unknown> {
  readonly id: string
  readonly topic: string
  /** As it was added. */
  readonly tenant: string | undefined
  readonly key: string | undefined
  readonly partition: string | undefined
  readonly payload: Payload
  /** From 1. Counts every time that a relay took it, also where the process then died. */
  readonly attempt: number
  /** Noted by an earlier attempt: the receiver has the message already, under this name. */
  readonly providerId: string | undefined
  /** The same on every attempt, at most 64 characters: send it along, so that repeats show. */
  readonly downstreamKey: string
  readonly createdAt: Date
  /** Aborts when the lease is lost, when the time is over, or when the relay is closed for good. */
  readonly signal: AbortSignal
  /**
   * Writes down what the receiver calls the message, before it is done: should this process die
   * now, the next attempt gets it as `providerId`. Rejects with `LEASE_LOST` where the message is
   * somebody else's by now.
   */
  note(providerId: string): Promise<void>
}

/**
 * What became of a message that was handed over. Nothing at all, or no `kind`: it is done.
 * `dead_letter`: the receiver will never take it, so that to try again is of no use.
 */
export type Relayed =
  | { readonly kind?: 'done'; readonly providerId?: string | undefined }
  | { readonly kind: 'dead_letter'; readonly error: unknown }

interface Handles<Payload> {
  handle(message: RelayMessage<Payload>): Relayed | void | Promise<Relayed | void>
}

/**
 * Hands one message to its receiver. Where it throws (or rejects), the message is tried again
 * later. It must tolerate repeats: a message comes at least once.
 *
 * Of a method's kind, so that a handler may name the payload that it expects.
 */
export type MessageHandler<Payload = unknown> = Handles<Payload>['handle']

export interface RelayOptions {
  /** Its store must keep an outbox: SQLite, PostgreSQL, MySQL and MariaDB do. */
  engine: Engine

  /** Who handles what. Messages of other topics are left to other relays. */
  topics: Readonly<Record<string, MessageHandler>>

  /**
   * Handlers that run at once. As many messages again are taken in advance (more, where handlers
   * are quicker than the store), so that a free handler need not wait for the store; the more they
   * are, the less a relay beside this one finds to do. Beside these, `reserve` has a few places for
   * topics and tenants that have none.
   *
   * @default 50
   */
  concurrency?: number

  /**
   * How many handlers of one topic run at once. Lower it for a receiver that is slow, so that its
   * topic leaves more of `concurrency` to the others. As many messages again are taken in advance,
   * however quick the handlers are.
   *
   * @default no limit beside `concurrency` and `reserve`
   */
  perTopic?: number

  /**
   * How many handlers for messages of one tenant run at once. Messages without a tenant count as
   * one tenant. As many messages again are taken in advance.
   *
   * @default no limit beside `concurrency` and `reserve`
   */
  perTenant?: number

  /**
   * Places beside `concurrency`: half of them for tenants of which no handler runs here, the rest
   * for topics of which no handler runs here. 0 where no more than `concurrency` may ever run.
   *
   * @default 40 % of `concurrency`, at least 2
   */
  reserve?: number

  /**
   * Messages that are taken in one call of the store, at the most.
   *
   * @default 200
   */
  batchSize?: number

  /**
   * For how long a message is taken. It is renewed while its handler runs; a shorter one frees the
   * messages of a relay that died sooner, a longer one survives a longer failure of the store.
   *
   * @default 30_000
   */
  leaseMs?: number

  /**
   * How often to look for messages where nothing tells of them: those that were delayed or are to
   * be tried again, and all that other processes add, where the store cannot tell.
   *
   * @default 1_000
   */
  pollMs?: number

  /**
   * How often a message is tried before it is a dead letter. With the default pauses that is about
   * an hour and a quarter.
   *
   * @default 20
   */
  attemptsMax?: number

  /**
   * The pause before the next attempt is anything from nothing to `firstMs`, doubled with every
   * attempt up to `maxMs`.
   *
   * @default { firstMs: 1_000, maxMs: 900_000 }
   */
  backoff?: Partial<Backoff>

  /**
   * What a dead letter does to its partition. `block`: what is behind it waits until an operator
   * has decided, because order was asked for. `skip`: the partition goes on without it.
   *
   * @default 'block'
   */
  onDeadLetter?: 'block' | 'skip'

  /**
   * How long a handler may take. Then its signal aborts, the attempt has failed, and another
   * message gets its place. A handler that runs on all the same is counted and reported
   * (`work_overdue`), and its message is not handled a second time beside it in this relay. Once a
   * topic has as many of these as `concurrency` (at least 10), the topic is paused until one of
   * them ends, or until a try ends in time, of which there is one every five minutes
   * (`work_paused`, `work_resumed`); other topics go on.
   *
   * @default 60_000
   */
  handlerTimeoutMs?: number

  /** For tests: from 0 to 1, without 1. @default Math.random */
  random?: () => number
}

/** What became of the messages of one pass. */
export interface RelayReport {
  readonly relayed: number
  readonly retried: number
  readonly dead: number
  /** Somebody else may have them by now. */
  readonly lost: number
}

export interface RelayStats extends PlacesStats {
  /** Messages that were taken in advance and are not handled yet. */
  readonly waiting: number
}

export interface RelayCloseReport {
  /** Handlers that still ran when the grace was over: their messages come again. */
  readonly abandoned: number
}

/** Hands the messages of an outbox to their receivers. Any number of them may run, anywhere. */
export interface Relay {
  /**
   * Relays until `signal` aborts, `close` is called, or the engine is closed. Then it takes nothing
   * new, gives back what it has not begun, finishes what runs, and resolves. A failing store is
   * reported as `store_error` and tried again.
   */
  run(signal?: AbortSignal): Promise<void>

  /**
   * One pass: takes what is due, at most as many messages as fit, and resolves when each of them
   * is relayed, put off, or dead. Rejects with `STORE_FAILED` where the store cannot be asked.
   */
  runOnce(): Promise<RelayReport>

  /** What it handles now, what runs on past its time limit, and which topics are paused. */
  stats(): RelayStats

  /**
   * Takes nothing new, gives back what it has not begun, and waits for what runs, at most
   * `graceMs`. Handlers that run even then have their signal aborted, and their messages come
   * again when their lease is over. Call it before the engine's own `close`.
   *
   * @default graceMs 10_000
   */
  close(options?: { graceMs?: number }): Promise<RelayCloseReport>
}
