import { InvalidOptionsError } from '../../../core/errors.ts'
import { describe, optionalFunction, rejectUnknownOptions } from '../../../core/options.ts'
import { toMessageBody } from './message-body.ts'
import type { MessageHandler, RelayMessage } from '../relay-contract.ts'
import { unlessAborted } from '../../bounded-calls.ts'

/**
 * The part of a `ConfirmChannel` of amqplib that is used. Described here, so that no package is
 * imported.
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
  /** Only confirm channels have this method. */
  waitForConfirms: unknown
}

/** Properties of a message, with the names of amqplib. */
export type RabbitmqProperties = Readonly<Record<string, unknown>>

/** The part of an amqplib connection that is used, with or without `recovery`. */
export interface RabbitmqConnection {
  createConfirmChannel(): Promise<RabbitmqChannel>
}

export interface RabbitmqTargetOptions {
  /**
   * From `connect(url, { recovery: true })`. The target opens its own channel on it, and a new one
   * when that is closed. Pass either `connection` or `channel`.
   *
   * @default none
   */
  connection?: RabbitmqConnection

  /**
   * From `connection.createConfirmChannel()`, if you open channels yourself. A channel ends with
   * its connection, so pass a function that returns the current channel; it is called for every
   * message. Pass either `connection` or `channel`.
   *
   * @default none
   */
  channel?: RabbitmqChannel | (() => RabbitmqChannel | Promise<RabbitmqChannel>)

  /** The exchange. `''` is the default exchange, whose routing keys are the names of queues. */
  exchange: string

  /**
   * The routing key.
   *
   * @default the topic of the message
   */
  routingKey?: string | ((message: RelayMessage) => string)

  /**
   * Additional properties with the names of amqplib: `headers`, `expiration`, `priority`. The
   * target always sets `messageId`, `persistent` and `mandatory`, because delivery depends on them.
   *
   * @default none
   */
  properties?: (message: RelayMessage) => RabbitmqProperties
}

/**
 * Creates a handler that publishes messages to RabbitMQ. A message is done when the broker has
 * confirmed it. Messages are persistent and have the downstream key as `messageId`, by which
 * receivers recognise repeats. If no queue accepts a message, the broker returns it and the attempt
 * has failed.
 */
export function rabbitmqTarget(options: RabbitmqTargetOptions): MessageHandler {
  const { exchange, routingKey, properties } = checkOptions(options)
  const channels = toChannels(options)
  return async (message) => {
    const { topic, downstreamKey, createdAt, signal } = message
    // A connection that never recovers must not block a handler for ever.
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
      await publisherOf(channel).publish(publication)
    } catch (error) {
      if (isClosedChannelError(error)) channels.forget(channel)
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
  /** The open channel, or the one that is being opened. */
  readonly current: () => RabbitmqChannel | Promise<RabbitmqChannel>
  /** Drops a closed channel. */
  readonly forget: (channel: RabbitmqChannel) => void
}

function toChannels({ connection, channel }: RabbitmqTargetOptions): Channels {
  if ((connection === undefined) === (channel === undefined)) {
    throw new InvalidOptionsError('rabbitmqTarget needs either connection or channel, not both')
  }
  if (connection !== undefined) {
    if (typeof connection?.createConfirmChannel === 'function') return channelsOn(connection)
    throw new InvalidOptionsError(
      `rabbitmqTarget.connection must be an amqplib connection, got ${describe(connection)}`,
    )
  }
  const forget = () => undefined
  if (typeof channel === 'function') return { current: channel, forget }
  checkChannel(channel)
  return { current: () => channel, forget }
}

/**
 * Opens a channel if there is none. While a connection recovers, the target waits for it.
 *
 * Targets do not share a channel: because of one bad message (a missing exchange, an invalid
 * property) the broker closes the whole channel, and every unconfirmed message on it fails.
 */
function channelsOn(connection: RabbitmqConnection): Channels {
  let opening: Promise<RabbitmqChannel> | undefined
  let opened: RabbitmqChannel | undefined
  const forget = (channel: RabbitmqChannel | undefined) => {
    // A channel may emit `close` twice. The second event must not drop the next channel.
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

/**
 * amqplib throws this on a closed channel. A channel closed before `on('close')` emits no event.
 */
function isClosedChannelError(error: unknown): boolean {
  return error instanceof Error && error.name === 'IllegalOperationError'
}

/** Without confirms, a message would count as done when it is written to the socket. */
function checkChannel(channel: RabbitmqChannel | undefined): asserts channel is RabbitmqChannel {
  if (typeof channel?.waitForConfirms === 'function') return
  throw new InvalidOptionsError(
    'rabbitmqTarget.channel must be an amqplib confirm channel ' +
      `(connection.createConfirmChannel()), got ${describe(channel)}`,
  )
}

const publishersByChannel = new WeakMap<RabbitmqChannel, Publisher>()

/** One for each channel, because the events of a channel are about the messages of all targets. */
function publisherOf(channel: RabbitmqChannel): Publisher {
  checkChannel(channel)
  const made = publishersByChannel.get(channel) ?? new Publisher(channel)
  publishersByChannel.set(channel, made)
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

class Publisher {
  readonly #channel: RabbitmqChannel
  /** By message id. A later attempt replaces an earlier one that got no answer. */
  readonly #pending = new Map<string, Pending>()

  /** Why the broker closes the channel. */
  #error: unknown

  constructor(channel: RabbitmqChannel) {
    this.#channel = channel
    channel.on('return', (message: ReturnedMessage) => this.#onReturn(message))
    // An `error` event without a listener would end the process. Failed messages carry the error.
    channel.on('error', (error: unknown) => {
      this.#error = error
    })
    // Some versions of amqplib do not call the confirm callback when a channel closes.
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
        // A broker returns a message before it confirms it.
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
      `RabbitMQ returned the message: ${String(replyText)} (${String(replyCode)})`,
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
