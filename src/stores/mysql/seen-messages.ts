/** Messages as a look has seen them. */
import type { Row } from './client.ts'
import { NO_PARTITION, type MessageRow } from './message-columns.ts'

/** One row of a look. */
export interface Seen {
  readonly origin: number
  /** The number of its topic among those that were asked for, or of its leap. */
  readonly topic: number
  readonly id: string | undefined
  /** Where it is due. */
  readonly dueAtMs: number | undefined
  readonly addedAtUs: number
  readonly lane: string
  /** Of its tenant; empty where it has none, and where the look did not ask. */
  readonly key: string
}

export function toSeen([origin, topic, id, dueAt, addedAt, lane, tenant]: Row): Seen {
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
export type DueMessage = Seen & { readonly id: string; readonly dueAtMs: number }

export function isDue(seen: Seen): seen is DueMessage {
  return seen.id !== undefined && seen.dueAtMs !== undefined
}

export const isFree = ({ lane }: Seen): boolean => lane === NO_PARTITION

type Due = Pick<MessageRow, 'dueAtMs' | 'addedAtUs'>

export function byDueTime(one: Due, other: Due): number {
  return (one.dueAtMs ?? 0) - (other.dueAtMs ?? 0) || one.addedAtUs - other.addedAtUs
}

/** As the database sorts them. */
export function byBytes(one: string, other: string): number {
  return Buffer.compare(Buffer.from(one), Buffer.from(other))
}
