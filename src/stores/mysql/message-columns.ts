/** Messages as columns. */
import type { HeldMessage, MessageState, MessageView } from '../../core/durable-store.ts'
import { readErrors } from '../../core/messages.ts'
import type { Row } from './client.ts'
import { fromColumn, readColumn, toColumn, type Column } from './values.ts'

/** A message as it is kept. */
export interface MessageRow {
  readonly id: string
  readonly topic: string
  /** Where it is waiting to be relayed; absent once it is over, unless its partition waits. */
  readonly lane: string | undefined
  readonly place: number
  /** Its number in its partition; without one, 0. */
  readonly sequence: number
  readonly state: MessageState
  readonly token: string
  readonly attempt: number
  readonly createdAtMs: number
  /** By the clock of the server, whatever clock the store has: for the order alone. */
  readonly addedAtUs: number
  readonly dueAtMs: number | undefined
  readonly endedAtMs: number | undefined
  readonly partition: string | undefined
  readonly tenant: string | undefined
  readonly key: string | undefined
  readonly providerId: string | undefined
  readonly errors: string
  readonly payload: Uint8Array | undefined
}

export type MessageField = keyof MessageRow

/** In characters, as an index has a length. */
const NAME_LENGTH_MAX = 255
export const TOKEN_LENGTH_MAX = 64

const MESSAGE: Readonly<Record<MessageField, Column>> = {
  id: { name: 'id', kind: 'word' },
  topic: { name: 'topic', kind: 'text', lengthMax: NAME_LENGTH_MAX },
  lane: { name: 'lane', kind: 'text', lengthMax: NAME_LENGTH_MAX + 1 },
  place: { name: 'place', kind: 'number' },
  sequence: { name: 'sequence', kind: 'number' },
  state: { name: 'state', kind: 'word' },
  token: { name: 'token', kind: 'text', lengthMax: TOKEN_LENGTH_MAX },
  attempt: { name: 'attempt', kind: 'number' },
  createdAtMs: { name: 'created_at_ms', kind: 'number' },
  addedAtUs: { name: 'added_at_us', kind: 'number' },
  dueAtMs: { name: 'due_at_ms', kind: 'number' },
  endedAtMs: { name: 'ended_at_ms', kind: 'number' },
  partition: { name: '`partition`', kind: 'text', lengthMax: NAME_LENGTH_MAX },
  tenant: { name: 'tenant', kind: 'text', lengthMax: NAME_LENGTH_MAX },
  key: { name: '`key`', kind: 'text' },
  providerId: { name: 'provider_id', kind: 'text' },
  errors: { name: 'errors', kind: 'text' },
  payload: { name: 'payload', kind: 'bytes' },
}

export const messageColumn = (field: MessageField): string => MESSAGE[field].name

export const messageLiteral = (field: MessageField, value: unknown): string =>
  toColumn(MESSAGE[field], value)

const FIELDS = Object.keys(MESSAGE) as readonly MessageField[]

/** Everything but the payload, which may be large. */
export const MESSAGE_HEAD: readonly MessageField[] = FIELDS.filter((field) => field !== 'payload')

export const MESSAGE_ALL: readonly MessageField[] = FIELDS

/** From the table that is called `m`. */
export const messageList = (fields: readonly MessageField[]): string =>
  fields.map((field) => readColumn(MESSAGE[field], 'm')).join(', ')

export function toMessage(fields: readonly MessageField[], values: Row): MessageRow {
  const message: Partial<Record<MessageField, unknown>> = { payload: undefined }
  for (const [n, field] of fields.entries()) message[field] = fromColumn(MESSAGE[field], values[n])
  return message as unknown as MessageRow
}

/** The lane of messages that need no order. */
export const NO_PARTITION = ''

/** Never the empty one: a partition may have an empty name. */
export const laneOf = (partition: string | undefined): string =>
  partition === undefined ? NO_PARTITION : `/${partition}`

/** The columns that differ, with what they become. */
export function messageChanges(before: MessageRow, after: MessageRow): Map<string, string> {
  const changes = new Map<string, string>()
  for (const field of MESSAGE_HEAD) {
    if (before[field] !== after[field]) {
      changes.set(messageColumn(field), messageLiteral(field, after[field]))
    }
  }
  return changes
}

export function toHeld(row: MessageRow): HeldMessage {
  const { id, token, topic, tenant, key, partition, payload, attempt } = row
  const { providerId, createdAtMs } = row
  const createdAt = new Date(createdAtMs)
  return {
    id,
    token,
    topic,
    tenant,
    key,
    partition,
    payload: payload ?? NO_BYTES,
    attempt,
    providerId,
    createdAt,
  }
}

export function toMessageView(row: MessageRow): MessageView {
  const { id, topic, tenant, key, partition, payload, state, attempt, providerId } = row
  return {
    id,
    topic,
    tenant,
    key,
    partition,
    payload,
    state,
    attempt,
    errors: readErrors(row.errors),
    providerId,
    createdAt: new Date(row.createdAtMs),
    dueAt: row.dueAtMs === undefined ? undefined : new Date(row.dueAtMs),
    endedAt: row.endedAtMs === undefined ? undefined : new Date(row.endedAtMs),
  }
}

const NO_BYTES = new Uint8Array(0)
