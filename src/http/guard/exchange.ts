/**
 * A request and its reply as the guard sees them. Adapters translate the objects of their framework
 * into these types and make no decisions.
 */
import type { FingerprintBody } from '../fingerprint/fingerprint-body.ts'
import type { HandlerContext } from './handler-context.ts'
import type { HeaderPair } from '../reply/stored-headers.ts'

export interface HttpExchange {
  readonly method: string
  /** The concrete path as the client sent it, without the query. */
  readonly path: string
  /** Without the question mark; `''` if there is none. */
  readonly query: string
  /**
   * The name of a route without the option `operation`: its template with parameter names erased,
   * or the path, normalised in the way in which the router matches it.
   */
  readonly route: string
  /** `name` is in lower case. Repeated lines are joined by commas, or returned as an array. */
  header(name: string): string | readonly string[] | undefined
  /** The whole body, or `too_large` as soon as it exceeds the limit. */
  body(bytesMax: number): Promise<ExchangeBody> | ExchangeBody
}

export type ExchangeBody =
  | FingerprintBody
  | { readonly kind: 'too_large' }
  /** The body is incomplete, because the client has disconnected. */
  | { readonly kind: 'aborted' }

export interface HttpReply {
  readonly status: number
  readonly headers: readonly HeaderPair[]
  readonly body: Uint8Array
}

/** The reply of a handler. The adapter holds it back until the guard has answered. */
export type Produced =
  | { readonly kind: 'reply'; readonly reply: HttpReply }
  /** The body has exceeded the limit: status and headers are known, the body is still written. */
  | { readonly kind: 'oversized'; readonly status: number; readonly headers: readonly HeaderPair[] }

/** The handler of one request, as the adapter offers it to the guard. */
export interface CapturedHandler {
  /** Starts the handler and holds its reply back. */
  enter(context: HandlerContext, replyBytesMax: number): void
  /** Resolves when the reply is complete or oversized; rejects if there will be no reply. */
  whole(): Promise<Produced>
  /** The reply; `undefined` while it is not complete. */
  produced(): Produced | undefined
  /** Discards the reply after a rollback of its transaction: the handler may send another one. */
  reset(): void
  /** Called for every error that is reported to the context. */
  failed(error: unknown): void
  /** Called if the application has recovered from the last error. @default ignored */
  recovered?(): void
  /** Whether an error that causes a failure reply would have been reported to the context. */
  seesErrors(): boolean
  /**
   * Whether the handler function has started. Code of the framework that runs before it, such as
   * the pipes of Nest, may reply without it.
   *
   * @default true
   */
  isEntered?(): boolean
}

/** The action that the adapter must take. */
export type Answer =
  /** Pass the request to the handler unchanged: it is not protected. */
  | { readonly kind: 'pass' }
  /** Send the reply of the handler, with these headers added. */
  | { readonly kind: 'deliver'; readonly headers: readonly HeaderPair[] }
  /** Send this reply and discard that of the handler. */
  | { readonly kind: 'reply'; readonly reply: HttpReply }
  /** Pass the error to the error handling of the framework. */
  | { readonly kind: 'error'; readonly error: unknown }
