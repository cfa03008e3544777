import type { OutboxStore } from '../core/durable-store.ts'
import type { Engine } from '../core/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { newRecordId } from '../core/identity.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { announceAdd } from './local-adds.ts'
import { checkMessageId, checkMessageName } from './message-checks.ts'
import { encodeValue } from './values.ts'

export interface OutboxOptions {
  /** Its store must keep an outbox: SQLite, PostgreSQL, MySQL and MariaDB do. */
  engine: Engine
}

export interface AddOptions {
  /**
   * The tenant that the message is for. Relays take the messages of a topic in turns of the
   * tenants, so that the many messages of one do not delay those of another.
   *
   * @default none: it takes turns together with all messages that have no tenant
   */
  tenant?: string

  /** For the receiver: what the message is about, in your own words. */
  key?: string

  /**
   * Messages of one topic and one partition are relayed one after the other, in the order their
   * transactions commit. Others who add to the same one wait until this transaction has ended, so
   * keep it short, and name what needs the order (an account, an order), not everything.
   *
   * @default none: in any order, and several at once
   */
  partition?: string

  /**
   * Not before so long after it was added.
   *
   * @default 0
   */
  delayMs?: number

  /**
   * The id of the message, a UUID in lower case: where you have one that is the same on every
   * attempt. To add it a second time fails.
   *
   * @default a new one
   */
  id?: string
}

/**
 * The id of a message, once it is written. On SQLite that is when `add` returns (and where it
 * fails, it throws): a synchronous transaction reads `id` and need not await anything.
 */
export type AddedMessage = Promise<string> & { readonly id: string }

/** Messages that become due with the transaction in which they are written, or not at all. */
export interface Outbox {
  /**
   * Adds a message in an open transaction: the one that the store has handed to your work, or one
   * that you have begun yourself on a client of the store's kind. `payload` is any JSON value, or
   * bytes; at most 1 MiB. It is relayed once the transaction has committed.
   */
  add(tx: unknown, topic: string, payload: unknown, options?: AddOptions): AddedMessage
}

const ADD_OPTION_NAMES = ['tenant', 'key', 'partition', 'delayMs', 'id'] as const
const DELAY_MS_MAX = 366 * 24 * 60 * 60 * 1000

export function createOutbox(options: OutboxOptions): Outbox {
  rejectUnknownOptions('createOutbox', options, ['engine'])
  const { engine } = options
  const store = outboxOf(engine, 'createOutbox')
  return {
    add: (tx, topic, payload, more = {}) => {
      rejectUnknownOptions('outbox.add', more, ADD_OPTION_NAMES)
      const { tenant, key, partition, delayMs, id } = more
      const message = {
        id: id === undefined ? newRecordId(engine.clock.nowMs()) : checkMessageId(id),
        topic: checkMessageName('the topic of a message', topic),
        tenant: optionalName('the tenant of a message', tenant),
        key: optionalName('the key of a message', key),
        partition: optionalName('the partition of a message', partition),
        payload: encodeValue(`the payload of a message for "${topic}"`, payload),
        delayMs: wholeNumber('outbox.add.delayMs', delayMs, {
          fallback: 0,
          min: 0,
          max: DELAY_MS_MAX,
        }),
      }
      // A synchronous store throws right here, so that a synchronous transaction rolls back.
      const written = store.add(tx, message)
      const announce = () => {
        if (message.delayMs === 0) announceAdd(engine.store)
        return message.id
      }
      const promise =
        written instanceof Promise ? written.then(announce) : Promise.resolve(announce())
      return Object.assign(promise, { id: message.id })
    },
  }
}

function optionalName(where: string, value: unknown): string | undefined {
  return value === undefined ? undefined : checkMessageName(where, value)
}

/** The outbox of an engine's store. Throws where it has none, and says which have. */
export function outboxOf(engine: Engine, where: string): OutboxStore {
  const store = (engine as Engine | undefined)?.store
  if (store === undefined) {
    throw new InvalidOptionsError(`${where}.engine must be an engine, got ${describe(engine)}`)
  }
  if (store.durable !== undefined) return store.durable.outbox
  throw new InvalidOptionsError(
    `${where} needs a store that keeps an outbox, and the ${store.name} store does not; use ` +
      'sqliteStore, postgresStore or mysqlStore',
  )
}
