import type { Store } from './store.ts'

/** What runs beside requests: operations, the handlers of messages, and looks at providers. */
export type WorkPart = 'operation' | 'relay' | 'reconciler'

/** Work that this process does not begin at the moment, because earlier work of the kind hangs. */
export interface PausedWork {
  readonly part: WorkPart
  /** The operation or the topic. */
  readonly name: string
  /** Calls that run on although their time limit is over. */
  readonly overdue: number
}

const paused = new WeakMap<Store, Set<PausedWork>>()

/** Notes that work is paused, for `engine.health()`. Returns what ends the note. */
export function notePaused(store: Store, work: PausedWork): () => void {
  const noted = paused.get(store) ?? new Set()
  paused.set(store, noted.add(work))
  return () => {
    noted.delete(work)
  }
}

export function pausedWork(store: Store): readonly PausedWork[] {
  return [...(paused.get(store) ?? [])]
}
