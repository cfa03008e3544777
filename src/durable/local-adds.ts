/**
 * How a relay learns that a message was added through the same engine, where its store has no way
 * to tell: the message is there once the caller commits, so it is worth looking soon.
 */
import type { Engine } from '../core/engine-contract.ts'

const listeners = new WeakMap<Engine, Set<() => void>>()

/** Calls `listener` for every message that is added. Returns what ends that. */
export function onLocalAdd(engine: Engine, listener: () => void): () => void {
  const those = listeners.get(engine) ?? new Set()
  listeners.set(engine, those)
  those.add(listener)
  return () => void those.delete(listener)
}

export function announceAdd(engine: Engine): void {
  for (const listener of listeners.get(engine) ?? []) listener()
}
