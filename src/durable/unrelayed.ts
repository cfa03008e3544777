/** Messages of topics that no relay of this process has. */
import type { OutboxStore, UnrelayedTopic } from '../core/durable-store.ts'
import type { Engine } from '../core/engine-contract.ts'
import type { Store } from '../core/store.ts'
import { askStore } from './durable-engine.ts'

/** How often the relays of a process look, together. */
const LOOK_EVERY_MS = 60_000

/**
 * A message that has been due for so long has probably no relay in any process: one that has
 * polls every second. Shorter, and every backlog of another process would be reported here.
 */
const OVERDUE_MS = 60_000

/** Topics that are reported by one look. */
export const UNRELAYED_SHOWN = 10

/** By store: how many relays of this process have each topic. */
const relayed = new WeakMap<Store, Map<string, number>>()

/** By store: the monotonic clock at the last look. */
const lookedAtMs = new WeakMap<Store, number>()

/** Notes that these topics have a relay. Returns what ends that. */
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

/** Topics with a message that has been due for a minute, and that no relay of this process has. */
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

/** The same, with an event for each topic. */
export async function tellUnrelayed(engine: Engine, outbox: OutboxStore): Promise<number> {
  lookedAtMs.set(engine.store, engine.clock.monotonicMs())
  const found = await findUnrelayed(engine, outbox, UNRELAYED_SHOWN)
  for (const topic of found) engine.emit({ kind: 'message_unrelayed', ...topic })
  return found.length
}

/** Whether this process has not looked for a while. The first call only starts the time. */
export function isLookDue({ store, clock }: Engine): boolean {
  const nowMs = clock.monotonicMs()
  const last = lookedAtMs.get(store)
  if (last === undefined) lookedAtMs.set(store, nowMs)
  return last !== undefined && nowMs - last >= LOOK_EVERY_MS
}
