import { InvalidOptionsError } from '../core/errors.ts'
import { describe, optionalFunction, rejectUnknownOptions } from '../core/options.ts'
import { toMessageBody } from './message-body.ts'
import type { MessageHandler, RelayMessage } from './relay-contract.ts'
import { unlessAborted } from './unless-aborted.ts'

/**
 * The part of a `ConfirmChannel` of amqplib that is used. Described, not imported: whatever behaves
 * like one will do.
 */
export interface RabbitmqChannel {
  publish(
    exchange: string,
    routingKey: string,
    content: Buffer,
    options: RabbitmqProperties,
    confirmed: (error: unknown) => void,
  ): unknown
  on(event: string, listener: (...args: never[]) => void): unknown
  /** What every confirm channel has, and no other. */
  waitForConfirms: unknown
}

/** Properties of a message, as amqplib names them. */
export type RabbitmqProperties = Readonly<Record<string, unknown>>

/** The part of a connection of amqplib that is used, with its `recovery` or without. */
export interface RabbitmqConnection {
  createConfirmChannel(): Promise<RabbitmqChannel>
}

export interface RabbitmqTargetOptions {
  /**
   * From `connect(url, { recovery: true })`. The target opens a channel of its own on it, and
   * another one when that is closed. Or give `channel`.
   */
  connection?: RabbitmqConnection

  /**
   * From `connection.createConfirmChannel()`, where you open channels yourself. A channel ends with
   * its connection, so give a function that returns the one you have now; it is asked for every
   * message. Or give `connection`.
   */
  channel?: RabbitmqChannel | (() => RabbitmqChannel | Promise<RabbitmqChannel>)

  /** Where messages are published to. `''`: the default exchange, whose routing keys are queues. */
  exchange: string

  /**
   * Under which routing key.
   *
   * @default the topic of the message
   */
  routingKey?: string | ((message: RelayMessage) => string)

  /**
   * Properties of your own, as amqplib names them (`headers`, `expiration`, `priority`).
   * `messageId`, `persistent` and `mandatory` are ours: they are what the promise rests on.
   *
   * @default none
   */
  properties?: (message: RelayMessage) => RabbitmqProperties
}

/**
 * A handler that publishes messages to RabbitMQ, and calls them done once the broker has confirmed
 * them. Persistent, with the downstream key as `messageId`, for receivers to know repeats by. A
 * message that no queue takes comes back and has failed: it is tried again, and then a dead letter.
 */
export function rabbitmqTarget(options: RabbitmqTargetOptions): MessageHandler {
  const { exchange, routingKey, properties } = checkOptions(options)
  const channels = toChannels(options)
  return async (message) => {
    const { topic, downstreamKey, createdAt, signal } = message
    // A connection that never comes back must not keep a handler for ever.
    const channel = await unlessAborted(signal, channels.current())
    const { content, contentType } = toMessageBody(message)
    const route = typeof routingKey === 'function' ? routingKey(message) : (routingKey ?? topic)
    const publication = {
      exchange,
      route,
      content,
      signal,
      properties: {
        contentType,
        type: topic,
        timestamp: Math.floor(createdAt.getTime() / 1000),
        ...properties?.(message),
        messageId: downstreamKey,
        persistent: true,
        mandatory: true,
      },
    }
    try {
      await publishingOf(channel).publish(publication)
    } catch (error) {
      if (isOfClosedChannel(error)) channels.forget(channel)
      throw error
    }
    return undefined
  }
}

function checkOptions(options: RabbitmqTargetOptions): RabbitmqTargetOptions {
  const known = ['connection', 'channel', 'exchange', 'routingKey', 'properties']
  rejectUnknownOptions('rabbitmqTarget', options, known)
  const { exchange, routingKey, properties } = options
  if (typeof exchange !== 'string') {
    throw new InvalidOptionsError(
      `rabbitmqTarget.exchange must be a string, got ${describe(exchange)}`,
    )
  }
  if (typeof routingKey !== 'string') optionalFunction('rabbitmqTarget.routingKey', routingKey)
  optionalFunction('rabbitmqTarget.properties', properties)
  return options
}

interface Channels {
  /** The channel that is open, or is being opened. */
  readonly current: () => RabbitmqChannel | Promise<RabbitmqChannel>
  /** This channel is closed. */
  readonly forget: (channel: RabbitmqChannel) => void
}

function toChannels({ connection, channel }: RabbitmqTargetOptions): Channels {
  if ((connection === undefined) === (channel === undefined)) {
    throw new InvalidOptionsError('rabbitmqTarget needs either a connection or a channel')
  }
  if (connection !== undefined) {
    if (typeof connection?.createConfirmChannel === 'function') return channelsOn(connection)
    throw new InvalidOptionsError(
      `rabbitmqTarget.connection must be a connection of amqplib, got ${describe(connection)}`,
    )
  }
  const forget = () => undefined
  if (typeof channel === 'function') return { current: channel, forget }
  checkChannel(channel)
  return { current: () => channel, forget }
}

/**
 * Opens a channel when there is none. A connection that recovers makes the target wait for it.
 *
 * No two targets share a channel: over one bad message (an exchange that is not there, a property
 * that is wrong) the broker closes the whole channel, and every message on its way there fails.
 */
function channelsOn(connection: RabbitmqConnection): Channels {
  let opening: Promise<RabbitmqChannel> | undefined
  let opened: RabbitmqChannel | undefined
  const forget = (channel: RabbitmqChannel | undefined) => {
    // A channel may be reported as closed twice. The second report must not drop its successor.
    if (channel !== opened) return
    opened = undefined
    opening = undefined
  }
  const open = async () => {
    const channel = await connection.createConfirmChannel()
    channel.on('close', () => forget(channel))
    opened = channel
    return channel
  }
  const current = () => {
    if (opening === undefined) {
      opening = open()
      opening.catch(() => forget(undefined))
    }
    return opening
  }
  return { current, forget }
}

/** amqplib throws it on a closed channel. A channel closed before we listen emits no event. */
function isOfClosedChannel(error: unknown): boolean {
  return error instanceof Error && error.name === 'IllegalOperationError'
}

/** Without confirms a message would be done because it was written to a socket. */
function checkChannel(channel: RabbitmqChannel | undefined): asserts channel is RabbitmqChannel {
  if (typeof channel?.waitForConfirms === 'function') return
  throw new InvalidOptionsError(
    'rabbitmqTarget.channel must be a confirm channel of amqplib ' +
      `(connection.createConfirmChannel()), got ${describe(channel)}`,
  )
}

const publishings = new WeakMap<RabbitmqChannel, Publishing>()

/** One for each channel: its events tell of all that is published there, by whichever target. */
function publishingOf(channel: RabbitmqChannel): Publishing {
  checkChannel(channel)
  const made = publishings.get(channel) ?? new Publishing(channel)
  publishings.set(channel, made)
  return made
}

interface Publication {
  readonly exchange: string
  readonly route: string
  readonly content: Buffer
  readonly signal: AbortSignal
  readonly properties: RabbitmqProperties & { readonly messageId: string }
}

interface Pending {
  readonly end: (error?: Error) => void
  returned: Error | undefined
}

interface ReturnedMessage {
  readonly fields: { readonly replyCode?: unknown; readonly replyText?: unknown }
  readonly properties: { readonly messageId?: unknown }
}

class Publishing {
  readonly #channel: RabbitmqChannel
  /** By message id. The last one where an earlier attempt has had no answer: it is the stricter. */
  readonly #pending = new Map<string, Pending>()

  /** Why the broker closes the channel. */
  #error: unknown

  constructor(channel: RabbitmqChannel) {
    this.#channel = channel
    channel.on('return', (message: ReturnedMessage) => this.#onReturn(message))
    // With nobody listening it would end the process. It is told with every message that it fails.
    channel.on('error', (error: unknown) => {
      this.#error = error
    })
    // Not every version of amqplib calls back then.
    channel.on('close', () => this.#onClose())
  }

  publish({ exchange, route, content, signal, properties }: Publication): Promise<void> {
    const { messageId } = properties
    return new Promise((resolve, reject) => {
      const onAbort = () => pending.end(toError(signal.reason))
      const pending: Pending = {
        returned: undefined,
        end: (error) => {
          signal.removeEventListener('abort', onAbort)
          if (this.#pending.get(messageId) === pending) this.#pending.delete(messageId)
          if (error === undefined) resolve()
          else reject(error)
        },
      }
      signal.addEventListener('abort', onAbort)
      this.#pending.set(messageId, pending)
      try {
        signal.throwIfAborted()
        // A broker gives a message back before it confirms it.
        this.#channel.publish(exchange, route, content, properties, (error) => {
          if (error === null || error === undefined) pending.end(pending.returned)
          else pending.end(toError(this.#error ?? error))
        })
      } catch (error) {
        pending.end(toError(error))
      }
    })
  }

  #onReturn({ fields, properties }: ReturnedMessage): void {
    const pending = this.#pending.get(String(properties.messageId))
    if (pending === undefined) return
    const { replyCode, replyText } = fields
    pending.returned = new Error(
      `RabbitMQ gave the message back: ${String(replyText)} (${String(replyCode)})`,
    )
  }

  #onClose(): void {
    const closed = new Error('the channel was closed before RabbitMQ confirmed the message')
    const error = toError(this.#error ?? closed)
    for (const pending of [...this.#pending.values()]) pending.end(error)
  }
}

function toError(error: unknown): Error {
  return error instanceof Error
    ? error
    : new Error(`RabbitMQ refused the message: ${String(error)}`)
}
