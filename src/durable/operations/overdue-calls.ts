import type { Store } from '../../core/store/store.ts'

/** A call of an effect that still runs after its time limit. */
export interface OverdueCall {
  /** The name of its operation. */
  readonly name: string
  readonly recordId: string
  /** Resolves when the call has ended. */
  readonly ended: Promise<unknown>
}

/** A worker that counts overdue calls. */
export interface OverdueListener {
  /** Whether the worker runs this record, or has counted an earlier call of it that still runs. */
  readonly has: (call: OverdueCall) => boolean
  /** Whether the worker can run the operation. */
  readonly knows: (name: string) => boolean
  readonly count: (call: OverdueCall) => void
}

/**
 * Workers of this process by store. When an effect ignores its abort signal, its operation has
 * ended by then, so the worker would not notice the call otherwise.
 */
const listeners = new WeakMap<Store, Set<OverdueListener>>()

/** Returns a function that removes the listener. */
export function onOverdueCall(store: Store, listener: OverdueListener): () => void {
  const set = listeners.get(store) ?? new Set()
  listeners.set(store, set.add(listener))
  return () => {
    set.delete(listener)
  }
}

/** Reports a call to one worker: the one that runs the record, or one that knows the operation. */
export function reportOverdueCall(store: Store, call: OverdueCall): void {
  const all = [...(listeners.get(store) ?? [])]
  const one = all.find(({ has }) => has(call)) ?? all.find(({ knows }) => knows(call.name))
  one?.count(call)
}
