import type { DurableStore } from '../../core/store/durable-store.ts'
import type { Act } from '../../core/store/operator-store.ts'
import type { Lease, RecordRef, Store } from '../../core/store/store.ts'

export interface CachedDurableOptions {
  readonly durable: DurableStore
  readonly read: Store['read']
  /** Drops the reply of a record from the cache, and blocks fills of it for a while. */
  readonly forget: (identity: string) => Promise<void>
  /** Called if the second `forget` fails, which does not fail the act. */
  readonly onFailure: (error: unknown) => void
  /** Marks the lease as settled outside `settle`, so that no later settlement fills the cache. */
  readonly markUsed: (lease: Lease) => Lease
}

/**
 * Operations, messages and operator acts. One act changes a completed record: `discard_reply`. The
 * cache forgets the reply before the database does, and again afterwards. The first tombstone
 * blocks fills with a reply that was read before the act, even if this process crashes in between;
 * if it cannot be written, nothing is discarded. The second covers an act that took nearly as long
 * as the lifetime of the first tombstone.
 */
export function cachedDurable(options: CachedDurableOptions): DurableStore {
  const { durable, markUsed } = options
  const { phases, outbox, operator } = durable
  return {
    outbox,
    phases: {
      advance: (lease, work, signal) => phases.advance(markUsed(lease), work, signal),
      record: (lease, step, signal) =>
        phases.record(step.end === undefined ? lease : markUsed(lease), step, signal),
      load: (recordId, signal) => phases.load(recordId, signal),
      due: (query, signal) => phases.due(query, signal),
      orphans: (query, signal) => phases.orphans(query, signal),
    },
    operator: {
      takeUnknown: (request, signal) => operator.takeUnknown(request, signal),
      postpone: (target, signal) => operator.postpone(target, signal),
      audit: (query, signal) => operator.audit(query, signal),
      discarded: (query, signal) => operator.discarded(query, signal),
      act: async (act, by, signal) => {
        const identity = await discardedIdentity(options, act, signal)
        if (identity === undefined) return operator.act(act, by, signal)
        await options.forget(identity)
        const outcome = await operator.act(act, by, signal)
        if (outcome.kind === 'done') await options.forget(identity).catch(options.onFailure)
        return outcome
      },
    },
  }
}

/** The record whose reply the act discards; `undefined` if the act changes no completed record. */
async function discardedIdentity(
  { read }: CachedDurableOptions,
  act: Act,
  signal: AbortSignal | undefined,
): Promise<string | undefined> {
  if (act.kind !== 'discard_reply') return undefined
  const ref: RecordRef = act.ref
  return ref.identity ?? (await read(ref, signal))?.identity
}
