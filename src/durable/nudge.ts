import type { Store } from '../core/store.ts'

/**
 * Within one process, whoever makes an operation due wakes the workers of its store: they need not
 * find it by looking. Across processes they look now and then.
 */
const listeners = new WeakMap<Store, Set<() => void>>()

/** Returns what ends the listening. */
export function onNudge(store: Store, wake: () => void): () => void {
  const set = listeners.get(store) ?? new Set()
  listeners.set(store, set.add(wake))
  return () => {
    set.delete(wake)
  }
}

export function nudge(store: Store): void {
  for (const wake of listeners.get(store) ?? []) wake()
}
