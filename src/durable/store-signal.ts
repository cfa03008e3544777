import type { Store } from '../core/store/store.ts'

/**
 * A change that this process made in a store.
 *
 * - `operation_due`: an operation can be run. Workers query for it at once.
 * - `message_added`: a message was written in a transaction that may not have committed yet. Relays
 *   query for it soon; only some stores report the commit itself.
 */
export type StoreSignal = 'operation_due' | 'message_added'

type Listeners = Map<StoreSignal, Set<() => void>>

/** Listeners of this process. Workers and relays of other processes find the change by polling. */
const listenersOf = new WeakMap<Store, Listeners>()

/** Returns a function that removes the listener. */
export function onStoreSignal(store: Store, signal: StoreSignal, listener: () => void): () => void {
  const listeners: Listeners = listenersOf.get(store) ?? new Map<StoreSignal, Set<() => void>>()
  const set = listeners.get(signal) ?? new Set()
  listenersOf.set(store, listeners.set(signal, set.add(listener)))
  return () => {
    set.delete(listener)
  }
}

export function sendStoreSignal(store: Store, signal: StoreSignal): void {
  for (const listener of listenersOf.get(store)?.get(signal) ?? []) listener()
}
