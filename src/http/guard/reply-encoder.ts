/** Encodes the replies of a route as the bytes that are recorded. */
import { NO_BYTES } from '../../core/bytes.ts'
import type { Encryption } from '../../core/encryption.ts'
import { InvalidOptionsError, OutcomeUnknownError } from '../../core/errors.ts'
import type { EventSubject } from '../../core/events.ts'
import type { Scope } from '../../core/record/identity.ts'
import { toReply, type ReplyInit } from '../reply/http-reply.ts'
import { storedForm } from '../reply/reply-encryption.ts'
import { pickStored } from '../reply/stored-headers.ts'
import type { HttpReply, Produced } from './exchange.ts'
import { RolledBackReply, type GuardedContext } from './handler-context.ts'
import { meaningOf, type ReleaseOn } from './handler-reply.ts'

/** A promise only if `encrypt` of the route returns one. */
type Encoded = Uint8Array | Promise<Uint8Array>

export interface ReplyEncoderOptions {
  readonly replyBytesMax: number
  readonly releaseOn: ReleaseOn | undefined
  readonly storedHeaders: ReadonlySet<string>
  readonly replyVersion: number
  readonly encryption: Encryption | undefined
}

export class ReplyEncoder {
  readonly #options: ReplyEncoderOptions

  constructor(options: ReplyEncoderOptions) {
    this.#options = options
  }

  get replyBytesMax(): number {
    return this.#options.replyBytesMax
  }

  get releaseOn(): ReleaseOn | undefined {
    return this.#options.releaseOn
  }

  /** For work that has ended. A reply that cannot be encoded makes the outcome unknown. */
  afterWork(produced: Produced, context: GuardedContext): Encoded {
    try {
      const { returned } = context
      const bytes =
        returned === undefined
          ? this.#sent(produced, context)
          : this.#withAllHeaders(returned, context)
      return bytes instanceof Uint8Array ? bytes : Promise.resolve(bytes).catch(notEncoded)
    } catch (cause) {
      return notEncoded(cause)
    }
  }

  /** For a transaction in which the handler has sent its reply. */
  forCommit(produced: Produced | undefined, context: GuardedContext): Encoded {
    if (produced === undefined) throw new Error('the handler has sent no complete reply')
    if (meaningOf(produced, context) !== 'complete') throw new RolledBackReply()
    return this.#sent(produced, context)
  }

  /** For a transaction that has returned its reply. */
  returned(reply: HttpReply, context: GuardedContext): Encoded {
    const meaning = meaningOf({ kind: 'reply', reply }, context)
    if (meaning !== 'complete') throw new RolledBackReply()
    return this.#withAllHeaders(reply, context)
  }

  /** For `completeIn`, which gets the reply as an argument. */
  forCompleteIn(given: ReplyInit, context: GuardedContext): Encoded {
    const { replyBytesMax } = this.#options
    const reply = toReply('completeIn', given)
    const { status, body } = reply
    if (meaningOf({ kind: 'reply', reply }, context) !== 'complete') {
      throw new InvalidOptionsError(
        `completeIn() got status ${status}, which does not complete a key: roll back instead`,
      )
    }
    // The client gets the committed reply, so its body cannot be left out.
    if (body.byteLength > replyBytesMax) {
      throw new InvalidOptionsError(
        `completeIn() got a body of ${body.byteLength} bytes, more than replyBytesMax ` +
          `(${replyBytesMax}): shorten the body or raise replyBytesMax`,
      )
    }
    return this.#withAllHeaders(reply, context)
  }

  #sent(produced: Produced, context: GuardedContext): Encoded {
    const { storedHeaders, replyVersion, encryption } = this.#options
    const elided = produced.kind === 'oversized'
    const { status, headers } = elided ? produced : produced.reply
    const reply = {
      status,
      headers: pickStored(headers, storedHeaders),
      body: elided ? NO_BYTES : produced.reply.body,
      elided,
      schemaVersion: replyVersion,
    }
    return storedForm(reply, recordOf(context, context.scope), encryption)
  }

  /** Records all headers, because each of them was set for this reply explicitly. */
  #withAllHeaders({ status, headers, body }: HttpReply, context: GuardedContext): Encoded {
    const { replyBytesMax, replyVersion, encryption } = this.#options
    const elided = body.byteLength > replyBytesMax
    const reply = { status, headers, body, elided, schemaVersion: replyVersion }
    return storedForm(reply, recordOf(context, context.scope), encryption)
  }
}

/** The record that a reply is bound to. */
export function recordOf(
  { identity, recordId }: Pick<EventSubject, 'identity' | 'recordId'>,
  { tenant, operation }: Scope,
): EventSubject {
  return { identity, tenant, operation, recordId }
}

function notEncoded(cause: unknown): never {
  throw new OutcomeUnknownError('the reply of the handler could not be encoded', { cause })
}
