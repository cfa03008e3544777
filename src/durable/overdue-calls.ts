import type { Store } from '../core/store.ts'

/** A call of an effect that runs on although its time limit is over. */
export interface OverdueCall {
  /** The name of its operation. */
  readonly name: string
  readonly recordId: string
  /** Resolves when the call has ended after all. */
  readonly ended: Promise<unknown>
}

/** A worker that counts such calls. */
export interface OverdueListener {
  /** Whether it runs this record, or has counted an earlier call of it that still runs. */
  readonly has: (call: OverdueCall) => boolean
  /** Whether it would run the operation. */
  readonly knows: (name: string) => boolean
  readonly count: (call: OverdueCall) => void
}

/**
 * Within one process, an effect that ignores its signal is told to a worker of its store. The
 * operation itself has ended by then, so the worker would not know of the call otherwise.
 */
const listeners = new WeakMap<Store, Set<OverdueListener>>()

/** Returns what ends the listening. */
export function onOverdueCall(store: Store, listener: OverdueListener): () => void {
  const set = listeners.get(store) ?? new Set()
  listeners.set(store, set.add(listener))
  return () => {
    set.delete(listener)
  }
}

/** One worker counts it: the one that runs the record, or for a request one that has its name. */
export function tellOverdueCall(store: Store, call: OverdueCall): void {
  const all = [...(listeners.get(store) ?? [])]
  const one = all.find(({ has }) => has(call)) ?? all.find(({ knows }) => knows(call.name))
  one?.count(call)
}
