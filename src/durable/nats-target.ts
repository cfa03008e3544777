import { InvalidOptionsError } from '../core/errors.ts'
import { describe, optionalFunction, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { toMessageBody } from './message-body.ts'
import type { MessageHandler, RelayMessage } from './relay-contract.ts'
import { unlessAborted } from './unless-aborted.ts'

/**
 * The part of a JetStream client that is used: of `jetstream(connection)` from @nats-io/jetstream,
 * and of `connection.jetstream()` from nats. Described, not imported.
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
  jetstream: NatsJetstream

  /**
   * Where messages are published to. A stream must be there for it.
   *
   * @default the topic of the message
   */
  subject?: string | ((message: RelayMessage) => string)

  /**
   * Headers of your own, made with `headers()` of your client.
   *
   * @default none
   */
  headers?: (message: RelayMessage) => object

  /**
   * How long to wait for the stream's acknowledgement. Then the attempt has failed.
   *
   * @default 5_000
   */
  timeoutMs?: number
}

const TIMEOUT_MS_MAX = 24 * 60 * 60 * 1000

/**
 * A handler that publishes messages to a stream of NATS JetStream, and calls them done once the
 * stream has them. The downstream key is the message id, so that the stream itself drops repeats
 * within its `duplicate_window`; give that window room for your relay's pauses. The provider id is
 * `stream:sequence`.
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
      // Of the caller's own client, which alone knows what headers are.
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
