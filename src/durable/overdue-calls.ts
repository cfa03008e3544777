import type { Store } from '../core/store.ts'

/** A call of an effect that runs on although its time limit is over. */
export interface OverdueCall {
  /** The name of its operation. */
  readonly name: string
  readonly recordId: string
  /** Resolves when the call has ended after all. */
  readonly ended: Promise<unknown>
}

/**
 * Within one process, an effect that ignores its signal is told to the workers of its store. The
 * operation itself has ended by then, so they would not know of the call otherwise.
 */
const listeners = new WeakMap<Store, Set<(call: OverdueCall) => void>>()

/** Returns what ends the listening. */
export function onOverdueCall(store: Store, listener: (call: OverdueCall) => void): () => void {
  const set = listeners.get(store) ?? new Set()
  listeners.set(store, set.add(listener))
  return () => {
    set.delete(listener)
  }
}

export function tellOverdueCall(store: Store, call: OverdueCall): void {
  for (const listener of listeners.get(store) ?? []) listener(call)
}
