import type { RunContext } from './run-context.ts'

/** What guarded work does. It returns its result as bytes, or says how it ended. */
export type Work = (context: RunContext) => WorkEnd | Promise<WorkEnd>

export type WorkEnd =
  /** Completed: these bytes are replayed from now on. */
  | Uint8Array
  | { readonly kind: 'complete'; readonly result: Uint8Array }
  /** Ended without an effect and without a lasting answer: the bytes go to this caller only. */
  | { readonly kind: 'release'; readonly result: Uint8Array; readonly error?: unknown }
  | FailedEnd

/** Failed, with bytes to show for it: `onError` decides. */
export interface FailedEnd {
  readonly kind: 'fail'
  readonly result: Uint8Array
  readonly error: unknown
  /** The error that caused it could not be seen. @default false */
  readonly blind?: boolean
  /** The result is no answer of the work's own, so it is never recorded. @default false */
  readonly unstorable?: boolean
}

/** The end that the types promise, or `undefined` where plain JavaScript returned another. */
export function toEnding(end: WorkEnd | undefined): Exclude<WorkEnd, Uint8Array> | undefined {
  if (end instanceof Uint8Array) return { kind: 'complete', result: end }
  const known = end?.kind === 'complete' || end?.kind === 'release' || end?.kind === 'fail'
  return known && end.result instanceof Uint8Array ? end : undefined
}
