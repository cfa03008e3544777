import type { Store } from '../core/store.ts'

/**
 * Within one process, whoever adds a message tells the relays of its store. It is there once the
 * caller commits, and only some stores can tell of that: so it is worth looking soon.
 */
const listeners = new WeakMap<Store, Set<() => void>>()

/** Returns what ends the listening. */
export function onLocalAdd(store: Store, added: () => void): () => void {
  const set = listeners.get(store) ?? new Set()
  listeners.set(store, set.add(added))
  return () => {
    set.delete(added)
  }
}

export function announceAdd(store: Store): void {
  for (const added of listeners.get(store) ?? []) added()
}
