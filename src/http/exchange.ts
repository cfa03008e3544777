/**
 * A request and its reply as the guard sees them. Adapters translate their framework's shapes
 * into these and make no decision of their own.
 */
import type { FingerprintBody } from './fingerprint.ts'
import type { HandlerContext } from './handler-context.ts'
import type { HeaderPair } from './stored-headers.ts'

export interface HttpExchange {
  readonly method: string
  /** The concrete path as the client sent it, without the query. */
  readonly path: string
  /** Without the question mark; `''` where there is none. */
  readonly query: string
  /**
   * What the route is called where it has no stated name: its template with parameter names
   * erased, or the path normalised the way the router matches it.
   */
  readonly route: string
  /** By lower-case name. Several lines of one header come joined by commas, or as an array. */
  header(name: string): string | readonly string[] | undefined
  /** The whole body, or `too_large` once it is known to exceed the limit. */
  body(bytesMax: number): Promise<ExchangeBody> | ExchangeBody
}

export type ExchangeBody =
  | FingerprintBody
  | { readonly kind: 'too_large' }
  /** The body never arrived whole: the client is gone. */
  | { readonly kind: 'aborted' }

export interface HttpReply {
  readonly status: number
  readonly headers: readonly HeaderPair[]
  readonly body: Uint8Array
}

/** What a handler has produced, held back by the adapter until the guard lets it go. */
export type Produced =
  | { readonly kind: 'reply'; readonly reply: HttpReply }
  /** The body crossed the cap while it was written: the head is known, the rest still flows. */
  | { readonly kind: 'oversized'; readonly status: number; readonly headers: readonly HeaderPair[] }

/** The handler of one request, as the adapter offers it to the guard. */
export interface HeldHandler {
  /** Enters the handler, holding back whatever it replies. */
  enter(context: HandlerContext, replyBytesMax: number): void
  /** Resolves when its reply is whole or has crossed the cap; rejects when there will be none. */
  whole(): Promise<Produced>
  /** What it has produced; `undefined` while that is not whole. */
  produced(): Produced | undefined
  /** Forgets what it has produced, so that it may reply again: its transaction was rolled back. */
  reset(): void
  /** Hears of every error that is reported to the context. */
  failed(error: unknown): void
  /** Whether an error behind a failure reply would have been reported to the context. */
  seesErrors(): boolean
  /**
   * Whether the function that handles the request has been entered. Where code of the framework
   * stands before it (pipes of Nest), a reply may come without it. @default true
   */
  isEntered?(): boolean
}

/** What the adapter is to do. */
export type Answer =
  /** Not ours: hand the request to the handler untouched. */
  | { readonly kind: 'pass' }
  /** Let go what the handler has produced, with these headers added. */
  | { readonly kind: 'deliver'; readonly headers: readonly HeaderPair[] }
  /** Send this; whatever the handler has produced is void. */
  | { readonly kind: 'reply'; readonly reply: HttpReply }
  /** Give this to the framework's error handling. */
  | { readonly kind: 'error'; readonly error: unknown }
