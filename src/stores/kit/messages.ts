/** Decisions about messages that the SQL stores share: settlements, errors, acts of operators. */
import {
  MESSAGE_ERROR_LENGTH_MAX,
  MESSAGE_ERRORS_MAX,
  type MessageError,
  type MessageSettlement,
  type MessageState,
} from '../../core/store/durable-store.ts'
import type { Act } from '../../core/store/operator-store.ts'

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

/** The fields of a message that a settlement depends on. */
interface SettledFields {
  readonly state: MessageState
  readonly token: string | null
  readonly attempt: number
  readonly errors: string
  readonly providerId: string | undefined
}

/** How a settlement changes a message. A field that is absent keeps its value. */
export interface MessageSettled {
  readonly state: MessageState
  readonly attempt?: number
  readonly errors?: string
  readonly providerId?: string | undefined
  /** Set if the message is `ready`: the time from which it may be claimed. */
  readonly dueAtMs?: number
  /** A dead message that stays in its lane, so that the messages behind it wait. */
  readonly blocksLane?: boolean
}

/** `repeated`: an earlier call of the same settlement has written, and its answer was lost. */
export type MessageSettlementDecision =
  | { readonly kind: 'fenced' }
  | { readonly kind: 'repeated' }
  | { readonly kind: 'settled'; readonly to: MessageSettled }

/** The state after each settlement. The same token in that state means a repeated settlement. */
const SETTLED_STATE = {
  done: 'done',
  note: 'held',
  retry: 'ready',
  dead: 'dead',
  return: 'ready',
} as const satisfies Record<MessageSettlement['kind'], MessageState>

export function decideMessageSettlement(
  message: SettledFields | undefined,
  settlement: MessageSettlement,
  nowMs: number,
): MessageSettlementDecision {
  if (message === undefined || message.token !== settlement.token) return { kind: 'fenced' }
  const state = SETTLED_STATE[settlement.kind]
  if (message.state === 'held') {
    return { kind: 'settled', to: { state, ...changeOf(message, settlement, nowMs) } }
  }
  return { kind: message.state === state ? 'repeated' : 'fenced' }
}

function changeOf(
  { attempt, errors, providerId }: SettledFields,
  settlement: MessageSettlement,
  nowMs: number,
): Omit<MessageSettled, 'state'> {
  const withError = (error: string) => addError(errors, { atMs: nowMs, attempt, error })
  switch (settlement.kind) {
    case 'done':
      return { providerId: settlement.providerId ?? providerId }
    case 'note':
      return { providerId: settlement.providerId }
    case 'retry':
      return { errors: withError(settlement.error), dueAtMs: nowMs + settlement.delayMs }
    case 'dead':
      return { errors: withError(settlement.error), blocksLane: settlement.blocks }
    case 'return':
      return { attempt: attempt - 1, dueAtMs: nowMs }
  }
}

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
