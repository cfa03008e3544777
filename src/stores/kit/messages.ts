/** Shared by the stores of messages: which errors a message keeps, and acts of operators on it. */
import {
  MESSAGE_ERROR_LENGTH_MAX,
  MESSAGE_ERRORS_MAX,
  type Act,
  type MessageError,
  type MessageState,
} from '../../core/store/durable-store.ts'

/** The error as it is stored: text that every database can hold, cut to a readable length. */
export function toErrorText(error: string): string {
  return error.slice(0, MESSAGE_ERROR_LENGTH_MAX).replaceAll('\0', '\uFFFD').toWellFormed()
}

/** Adds an error to those of a message, as JSON. Drops the oldest beyond the maximum. */
export function addError(
  errors: string,
  { atMs, attempt, error }: { atMs: number; attempt: number; error: string },
): string {
  const kept = [...(JSON.parse(errors) as StoredError[]), [atMs, attempt, toErrorText(error)]]
  return JSON.stringify(kept.slice(-MESSAGE_ERRORS_MAX))
}

export function readErrors(errors: string): MessageError[] {
  return (JSON.parse(errors) as StoredError[]).map(([atMs, attempt, error]) => ({
    at: new Date(atMs),
    attempt,
    error,
  }))
}

/** The errors of a new message. */
export const NO_ERRORS = '[]'

type StoredError = readonly [atMs: number, attempt: number, error: string]

export type MessageAct = Extract<Act, { kind: 'retry_message' | 'drop_message' }>

/** `done`: the message moves to this state, and the audit gets this detail. */
export type MessageActDecision =
  | { readonly kind: 'done'; readonly to: 'ready' | 'dropped'; readonly detail: string }
  | { readonly kind: 'already' }
  | { readonly kind: 'refused' }

export function decideMessageAct(
  { state, attempt }: { readonly state: MessageState; readonly attempt: number },
  { kind }: MessageAct,
): MessageActDecision {
  const to = kind === 'retry_message' ? 'ready' : 'dropped'
  if (state === to) return { kind: 'already' }
  if (state !== 'dead') return { kind: 'refused' }
  return { kind: 'done', to, detail: JSON.stringify({ from: state, attempt }) }
}
