import type { HeldMessage, MessageState, MessageView } from '../../../core/store/durable-store.ts'
import { readErrors } from '../../kit/messages.ts'
import type { Row } from '../driver/driver.ts'
import type { MessageStop } from '../turns/messages.ts'

type MessageClaimRow = readonly [
  kind: 'held' | MessageStop['kind'] | 'waiting',
  id: string,
  topic: string,
  tenant: string | null,
  key: string | null,
  partition: string | null,
  payload: Uint8Array,
  attempt: number,
  providerId: string | null,
  createdAtMs: number,
]

/** The rows of one claim. */
export interface MessageClaimRows {
  readonly held: HeldMessage[]
  /** The turns at which the claim stopped. */
  readonly stops: readonly MessageStop[]
  /** The database has noted that a relay waits: it announces messages from now on. */
  readonly isWaiting: boolean
}

export function toMessageClaimRows(rows: readonly Row[], token: string): MessageClaimRows {
  const held: HeldMessage[] = []
  const stops: MessageStop[] = []
  let isWaiting = false
  for (const row of rows) {
    const [kind, id, topic, tenant, key, partition, payload, attempt, providerId, at] =
      row as MessageClaimRow
    if (kind === 'waiting') isWaiting = true
    else if (kind !== 'held') stops.push({ kind, topic, tenant, partition } as MessageStop)
    else {
      held.push({
        id,
        token,
        topic,
        tenant: tenant ?? undefined,
        key: key ?? undefined,
        partition: partition ?? undefined,
        payload,
        attempt,
        providerId: providerId ?? undefined,
        createdAt: new Date(at),
      })
    }
  }
  return { held, stops, isWaiting }
}

type MessageRow = readonly [
  id: string,
  topic: string,
  tenant: string | null,
  key: string | null,
  partition: string | null,
  payload: Uint8Array | null,
  state: MessageState,
  attempt: number,
  errors: string,
  providerId: string | null,
  createdAtMs: number,
  dueAtMs: number | null,
  endedAtMs: number | null,
]

export function toMessageView(row: Row): MessageView {
  const [id, topic, tenant, key, partition, payload, state, attempt, errors] = row as MessageRow
  const [, , , , , , , , , providerId, createdAtMs, dueAtMs, endedAtMs] = row as MessageRow
  return {
    id,
    topic,
    tenant: tenant ?? undefined,
    key: key ?? undefined,
    partition: partition ?? undefined,
    payload: payload ?? undefined,
    state,
    attempt,
    errors: readErrors(errors),
    providerId: providerId ?? undefined,
    createdAt: new Date(createdAtMs),
    dueAt: toDate(dueAtMs),
    endedAt: toDate(endedAtMs),
  }
}

function toDate(ms: number | null): Date | undefined {
  return ms === null ? undefined : new Date(ms)
}
