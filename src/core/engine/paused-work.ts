import type { Store } from '../store/store.ts'

/** The kinds of background work: operations, handlers of messages, calls to `reconcile`. */
export type WorkPart = 'operation' | 'relay' | 'reconciler'

/**
 * An operation or topic whose work this process does not start, except for a trial from time to
 * time: its calls hang, or its provider does not answer the reconciler.
 */
export interface PausedWork {
  readonly part: WorkPart
  /** The operation or the topic. */
  readonly name: string
  /** Calls that still run after their time limit. */
  readonly overdue: number
}

const paused = new WeakMap<Store, Set<PausedWork>>()

/** Lists paused work in `engine.health()` until the returned function is called. */
export function notePaused(store: Store, work: PausedWork): () => void {
  const listed = paused.get(store) ?? new Set()
  paused.set(store, listed.add(work))
  return () => {
    listed.delete(work)
  }
}

export function pausedWork(store: Store): readonly PausedWork[] {
  return [...(paused.get(store) ?? [])]
}
