import type { Act, DurableStore } from '../../core/durable-store.ts'
import type { Lease, RecordRef, Store } from '../../core/store.ts'

export interface CachedDurableOptions {
  readonly durable: DurableStore
  readonly read: Store['read']
  /** Drops what the cache has of a record, and keeps it out for a while. */
  readonly forget: (identity: string) => Promise<void>
  /** Told where that failed, and nobody has to wait for it. */
  readonly onFailure: (error: unknown) => void
  /** What a lease completes its record with is not taken for the result of a later settlement. */
  readonly used: (lease: Lease) => Lease
}

/**
 * What is kept beside the records, with the one act that changes a completed record: a bust. The
 * cache forgets before the database does, and again afterwards. The first tombstone keeps out what
 * was read before the bust, even where this process dies in between; where it cannot be written,
 * nothing is busted. The second is for a bust that took nearly as long as the first one lives.
 */
export function cachedDurable(options: CachedDurableOptions): DurableStore {
  const { durable, used } = options
  const { phases, outbox, desk } = durable
  return {
    outbox,
    phases: {
      advance: (lease, work, signal) => phases.advance(used(lease), work, signal),
      record: (lease, step, signal) =>
        phases.record(step.end === undefined ? lease : used(lease), step, signal),
      load: (recordId, signal) => phases.load(recordId, signal),
      due: (query, signal) => phases.due(query, signal),
      orphans: (query, signal) => phases.orphans(query, signal),
    },
    desk: {
      takeUnknown: (request, signal) => desk.takeUnknown(request, signal),
      postpone: (target, signal) => desk.postpone(target, signal),
      audit: (query, signal) => desk.audit(query, signal),
      act: async (act, by, signal) => {
        const identity = await bustedIdentity(options, act, signal)
        if (identity === undefined) return desk.act(act, by, signal)
        await options.forget(identity)
        const outcome = await desk.act(act, by, signal)
        if (outcome.kind === 'done') await options.forget(identity).catch(options.onFailure)
        return outcome
      },
    },
  }
}

/** Whose reply is about to go; `undefined` where nothing completed can change. */
async function bustedIdentity(
  { read }: CachedDurableOptions,
  act: Act,
  signal: AbortSignal | undefined,
): Promise<string | undefined> {
  if (act.kind !== 'bust') return undefined
  const ref: RecordRef = act.ref
  return ref.identity ?? (await read(ref, signal))?.identity
}
