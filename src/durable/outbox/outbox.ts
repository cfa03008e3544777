import type { NewMessage, OutboxStore } from '../../core/store/durable-store.ts'
import { callPrepare } from '../../core/engine/preparation.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { DAY_MS } from '../../core/time/durations.ts'
import { newRecordId } from '../../core/record/identity.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import { sendStoreSignal } from '../store-signal.ts'
import { checkMessageId, checkMessageName } from './message-checks.ts'
import { isThenable } from '../../core/thenable.ts'
import { encodeValue } from '../values.ts'
import { sealPayload } from './sealed-payload.ts'

export interface OutboxOptions {
  /** The engine whose store keeps the messages: SQLite, PostgreSQL, MySQL or MariaDB. */
  engine: Engine
}

export interface AddOptions {
  /**
   * The tenant of the message, 1 to 255 characters. Relays take the messages of a topic in turns of
   * the tenants, so that many messages of one tenant do not delay those of another.
   *
   * @default none: all messages without a tenant share one turn
   */
  tenant?: string

  /**
   * The subject of the message, for the receiver, such as an order id: 1 to 255 characters. Repeats
   * are recognised by the downstream key.
   *
   * @default none
   */
  key?: string

  /**
   * Messages of one topic and one partition are relayed one after the other, in the order in which
   * their transactions commit. A transaction that adds to a partition makes other transactions that
   * add to it wait until it ends. So keep it short, and use a partition for one account or order,
   * not for a whole topic. 1 to 255 characters.
   *
   * @default none: messages are relayed in any order, several at once
   */
  partition?: string

  /**
   * How long after `add` the message becomes due, up to 31_622_400_000 (366 days).
   *
   * @default 0
   */
  delayMs?: number

  /**
   * The id of the message, a UUID in lower case. Pass an id that is the same on every attempt, and
   * a second `add` of the message fails.
   *
   * @default a new id
   */
  id?: string
}

/**
 * Resolves with the id of the message when it is written. On SQLite, `add` has written it when it
 * returns and throws if it fails, so a synchronous transaction can read `id` without an await.
 */
export type AddedMessage = Promise<string> & { readonly id: string }

/** Adds messages that are relayed if their transaction commits, and only then. */
export interface Outbox {
  /**
   * Adds a message in an open transaction: the transaction that the store passes to your work, or
   * your own transaction on a client of the same database. `payload` is a JSON value or bytes, at
   * most 1 MiB. The message is relayed after the transaction has committed.
   */
  add(tx: unknown, topic: string, payload: unknown, options?: AddOptions): AddedMessage

  /**
   * Prepares the encryption of messages of this tenant, so that `add` needs no key service. Await
   * it before the transaction if the encryption of the engine uses a key service. Rejects if the
   * service fails or takes longer than 5 seconds. A handler or an operation that uses the
   * encryption of the engine is prepared for messages of its tenant, not for those without one.
   *
   * @default tenant: that of messages without a tenant
   */
  prepare(tenant?: string): Promise<void>
}

const ADD_OPTION_NAMES = ['tenant', 'key', 'partition', 'delayMs', 'id'] as const
const DELAY_MS_MAX = 366 * DAY_MS

/** Creates an outbox, which adds messages inside the transactions of the application. */
export function createOutbox(options: OutboxOptions): Outbox {
  rejectUnknownOptions('createOutbox', options, ['engine'])
  const { engine } = options
  const store = outboxOf(engine, 'createOutbox')
  return {
    add: (tx, topic, payload, addOptions = {}) => {
      const message = toMessage(engine, { topic, payload, addOptions })
      // A synchronous store throws here, so that a synchronous transaction rolls back.
      const written = addSealed({ engine, store, tx }, message)
      const onWritten = () => {
        if (message.delayMs === 0) sendStoreSignal(engine.store, 'message_added')
        return message.id
      }
      const promise =
        written instanceof Promise ? written.then(onWritten) : Promise.resolve(onWritten())
      return Object.assign(promise, { id: message.id })
    },
    prepare: async (tenant) => {
      const subject = { tenant: optionalName('the tenant of a message', tenant) }
      await callPrepare(engine.clock, engine.encryption, subject)
    },
  }
}

interface Added {
  readonly topic: string
  readonly payload: unknown
  readonly addOptions: AddOptions
}

/** The message with its payload, which is encoded, but not encrypted. */
function toMessage(engine: Engine, { topic, payload, addOptions }: Added): NewMessage {
  rejectUnknownOptions('outbox.add', addOptions, ADD_OPTION_NAMES)
  const { tenant, key, partition, delayMs, id } = addOptions
  return {
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
}

interface AddParts {
  readonly engine: Engine
  readonly store: OutboxStore
  readonly tx: unknown
}

function addSealed(
  { engine, store, tx }: AddParts,
  { payload: plain, ...message }: NewMessage,
): Promise<void> | void {
  const sealed = sealPayload(engine, message, plain)
  if (!isThenable(sealed)) return store.add(tx, { ...message, payload: sealed })
  const later = Promise.resolve(sealed)
  if (store.isSynchronous !== true) {
    return later.then((payload) => store.add(tx, { ...message, payload }))
  }
  // Not awaited, so its rejection would be unhandled.
  later.catch(() => undefined)
  const tenant = message.tenant === undefined ? '' : JSON.stringify(message.tenant)
  throw new InvalidOptionsError(
    'outbox.add must write its message at once on this store, but encryption.encrypt returned a ' +
      `promise: await outbox.prepare(${tenant}) before the transaction, and let encrypt return ` +
      'bytes then',
  )
}

function optionalName(where: string, value: unknown): string | undefined {
  return value === undefined ? undefined : checkMessageName(where, value)
}

/** The outbox of an engine's store. Throws if the store has none. */
export function outboxOf(engine: Engine, where: string): OutboxStore {
  const store = (engine as Engine | undefined)?.store
  if (store === undefined) {
    throw new InvalidOptionsError(
      `${where}.engine must be an engine from createEngine(), got ${describe(engine)}`,
    )
  }
  if (store.durable !== undefined) return store.durable.outbox
  throw new InvalidOptionsError(
    `${where} needs a store with an outbox, which the ${store.name} store does not have; use ` +
      'sqliteStore, postgresStore or mysqlStore',
  )
}
