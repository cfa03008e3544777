/** Finds due messages of topics that no relay of this process handles. */
import type { OutboxStore, UnrelayedTopic } from '../../core/store/durable-store.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { MINUTE_MS } from '../../core/time/durations.ts'
import type { Store } from '../../core/store/store.ts'
import { askStore } from '../durable-engine.ts'

/** How often all relays of a process together query for such messages. */
const QUERY_EVERY_MS = MINUTE_MS

/**
 * A message that has been due for this long probably has no relay in any process, because relays
 * poll every second. With a shorter time, each backlog of another process would be reported here.
 */
const OVERDUE_MS = MINUTE_MS

/** Topics that one query reports. */
export const UNRELAYED_SHOWN = 10

/** By store: how many relays of this process handle each topic. */
const relayed = new WeakMap<Store, Map<string, number>>()

/** By store: the monotonic time of the last query. */
const queriedAtMs = new WeakMap<Store, number>()

/** Registers the topics of a relay. Returns a function that removes them. */
export function noteRelay(store: Store, topics: readonly string[]): () => void {
  const counts = relayed.get(store) ?? new Map<string, number>()
  relayed.set(store, counts)
  for (const topic of topics) counts.set(topic, (counts.get(topic) ?? 0) + 1)
  let isOver = false
  return () => {
    if (isOver) return
    isOver = true
    for (const topic of topics) {
      const left = (counts.get(topic) ?? 0) - 1
      if (left > 0) counts.set(topic, left)
      else counts.delete(topic)
    }
  }
}

/** Topics without a relay in this process that have a message due for a minute or longer. */
export async function findUnrelayed(
  engine: Engine,
  outbox: OutboxStore,
  limit: number,
): Promise<UnrelayedTopic[]> {
  if (outbox.unrelayed === undefined) return []
  const topics = [...(relayed.get(engine.store)?.keys() ?? [])]
  return askStore(engine, 'find unrelayed messages', (signal) =>
    outbox.unrelayed!({ topics, overdueMs: OVERDUE_MS, limit }, signal),
  )
}

/** Finds such topics and emits `message_unrelayed` for each. Returns their number. */
export async function emitUnrelayed(engine: Engine, outbox: OutboxStore): Promise<number> {
  queriedAtMs.set(engine.store, engine.clock.monotonicMs())
  const found = await findUnrelayed(engine, outbox, UNRELAYED_SHOWN)
  for (const topic of found) engine.emit({ kind: 'message_unrelayed', ...topic })
  return found.length
}

/** Whether the last query was a minute ago. The first call only starts the minute. */
export function isUnrelayedQueryDue({ store, clock }: Engine): boolean {
  const nowMs = clock.monotonicMs()
  const last = queriedAtMs.get(store)
  if (last === undefined) queriedAtMs.set(store, nowMs)
  return last !== undefined && nowMs - last >= QUERY_EVERY_MS
}
