/** Columns of messages, and rows of the reads that precede a claim. */
import { NO_BYTES } from '../../../core/bytes.ts'
import type { HeldMessage, MessageState, MessageView } from '../../../core/store/durable-store.ts'
import { readErrors } from '../../kit/messages.ts'
import type { Row } from '../client.ts'
import {
  changedColumns,
  fromColumn,
  readColumn,
  toColumn,
  type Column,
  type RowColumns,
} from '../columns.ts'

/** A message as it is stored. */
export interface MessageRow {
  readonly id: string
  readonly topic: string
  /** Absent when the message has ended, unless it is dead and blocks its partition. */
  readonly lane: string | undefined
  readonly place: number
  /** Number of the message in its partition; 0 without a partition. */
  readonly sequence: number
  readonly state: MessageState
  readonly token: string
  readonly attempt: number
  readonly createdAtMs: number
  /** By the clock of the server, even if the store has another clock. Only used for the order. */
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

/** In characters. Index entries have a length limit. */
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

/** All fields except the payload, which may be large. */
export const MESSAGE_HEAD: readonly MessageField[] = FIELDS.filter((field) => field !== 'payload')

export const MESSAGE_ALL: readonly MessageField[] = FIELDS

/** Select list for these fields, from the table alias `m`. */
export const messageList = (fields: readonly MessageField[]): string =>
  fields.map((field) => readColumn(MESSAGE[field], 'm')).join(', ')

export function toMessage(fields: readonly MessageField[], values: Row): MessageRow {
  const message: Partial<Record<MessageField, unknown>> = { payload: undefined }
  for (const [n, field] of fields.entries()) message[field] = fromColumn(MESSAGE[field], values[n])
  return message as unknown as MessageRow
}

/** Lane of messages without a partition. */
export const NO_PARTITION = ''

/** The prefix separates a partition with an empty name from no partition. */
export const laneOf = (partition: string | undefined): string =>
  partition === undefined ? NO_PARTITION : `/${partition}`

const HEAD_COLUMNS: RowColumns<MessageField> = {
  fields: MESSAGE_HEAD,
  nameOf: messageColumn,
  literalOf: messageLiteral,
}

/** Columns that differ, with their new values as SQL. */
export function messageChanges(before: MessageRow, after: MessageRow): Map<string, string> {
  return changedColumns(HEAD_COLUMNS, before, after)
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

/** One row of `lookSql` or `leapLookSql`: a message, or an empty lane. */
export interface LookRow {
  readonly origin: number
  /** Index of its topic in the query, or of its leap. */
  readonly topic: number
  readonly id: string | undefined
  /** Only if the message is due. */
  readonly dueAtMs: number | undefined
  readonly addedAtUs: number
  readonly lane: string
  /** Tenant as a key of the index. Empty without a tenant, or if the query left it out. */
  readonly key: string
}

export function toLookRow([origin, topic, id, dueAt, addedAt, lane, tenant]: Row): LookRow {
  return {
    origin: Number(origin),
    topic: Number(topic),
    id: typeof id === 'string' ? id : undefined,
    dueAtMs: dueAt === null ? undefined : Number(dueAt),
    addedAtUs: Number(addedAt),
    lane: typeof lane === 'string' ? Buffer.from(lane, 'hex').toString('utf8') : NO_PARTITION,
    key: (tenant as string | null) ?? '',
  }
}

/** A message that is due. */
export type DueMessage = LookRow & { readonly id: string; readonly dueAtMs: number }

export function isDue(row: LookRow): row is DueMessage {
  return row.id !== undefined && row.dueAtMs !== undefined
}

export const isFree = ({ lane }: LookRow): boolean => lane === NO_PARTITION

type Due = Pick<MessageRow, 'dueAtMs' | 'addedAtUs'>

export function byDueTime(one: Due, other: Due): number {
  return (one.dueAtMs ?? 0) - (other.dueAtMs ?? 0) || one.addedAtUs - other.addedAtUs
}

/** The order of the database. */
export function byBytes(one: string, other: string): number {
  return Buffer.compare(Buffer.from(one), Buffer.from(other))
}
