import { InvalidOptionsError } from '../../../core/errors.ts'
import {
  describe,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../../core/options.ts'
import { DAY_MS } from '../../../core/time/durations.ts'
import { toMessageBody } from './message-body.ts'
import type { MessageHandler, RelayMessage } from '../relay-contract.ts'
import { unlessAborted } from '../../bounded-calls.ts'

/**
 * The part of a JetStream client that is used. `jetstream(connection)` of @nats-io/jetstream and
 * `connection.jetstream()` of nats have it. Described here, so that no package is imported.
 */
export interface NatsJetstream {
  publish(
    subject: string,
    payload: Uint8Array,
    options: { msgID: string; timeout: number; headers?: never },
  ): Promise<NatsPubAck>
}

export interface NatsPubAck {
  readonly stream: string
  readonly seq: number
}

export interface NatsTargetOptions {
  /** The JetStream client to publish with. */
  jetstream: NatsJetstream

  /**
   * The subject to publish to. A stream must listen to it.
   *
   * @default the topic of the message
   */
  subject?: string | ((message: RelayMessage) => string)

  /**
   * Additional headers, made with `headers()` of your client.
   *
   * @default none
   */
  headers?: (message: RelayMessage) => object

  /**
   * How long to wait for the acknowledgement of the stream. Then the attempt has failed, although
   * the stream may have the message; its `duplicate_window` drops the repeat. From 1 to 86_400_000
   * (a day).
   *
   * @default 5_000
   */
  timeoutMs?: number
}

const TIMEOUT_MS_MAX = DAY_MS

/**
 * Creates a handler that publishes messages to a stream of NATS JetStream. A message is done when
 * the stream has acknowledged it. The downstream key is the message id, so that the stream drops
 * repeats within its `duplicate_window`; make that window longer than the pauses of your relay. The
 * provider id is `stream:sequence`.
 */
export function natsTarget(options: NatsTargetOptions): MessageHandler {
  const { jetstream, subject, headers, timeoutMs } = checkOptions(options)
  return async (message) => {
    const { topic, downstreamKey, signal } = message
    const { content } = toMessageBody(message)
    const to = typeof subject === 'function' ? subject(message) : (subject ?? topic)
    signal.throwIfAborted()
    const publishing = jetstream.publish(to, content, {
      msgID: downstreamKey,
      timeout: timeoutMs,
      // The type of headers belongs to the caller's client.
      ...(headers && { headers: headers(message) as never }),
    })
    const ack = await unlessAborted(signal, publishing)
    return { providerId: `${ack.stream}:${ack.seq}` }
  }
}

function checkOptions(options: NatsTargetOptions): NatsTargetOptions & { timeoutMs: number } {
  rejectUnknownOptions('natsTarget', options, ['jetstream', 'subject', 'headers', 'timeoutMs'])
  const { jetstream, subject, headers } = options
  if (typeof (jetstream as NatsJetstream | undefined)?.publish !== 'function') {
    throw new InvalidOptionsError(
      'natsTarget.jetstream must be a JetStream client (jetstream(connection) of ' +
        `@nats-io/jetstream), got ${describe(jetstream)}`,
    )
  }
  if (typeof subject !== 'string') optionalFunction('natsTarget.subject', subject)
  optionalFunction('natsTarget.headers', headers)
  const bounds = { fallback: 5_000, min: 1, max: TIMEOUT_MS_MAX }
  return { ...options, timeoutMs: wholeNumber('natsTarget.timeoutMs', options.timeoutMs, bounds) }
}
