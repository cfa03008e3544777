import type { Store } from '../store/store.ts'
import { warnOnce } from '../warn.ts'

/** The newest engine of each store. */
const engines = new WeakMap<Store, { readonly isClosed: boolean }>()

/**
 * Warns if a store gets a second engine while the first is open. Both engines are correct, but they
 * batch separately, sweep twice, and a duplicate that waits in one is not woken by the other.
 */
export function noteEngine(store: Store, engine: { readonly isClosed: boolean }): void {
  const isShared = engines.get(store)?.isClosed === false
  engines.set(store, engine)
  if (!isShared) return
  warnOnce(
    `the ${store.name} store has two engines in this process: from two calls of ` +
      'createEngine({ store }), or from createEngine({ store }) and a guard with { store }. They ' +
      'batch their calls separately and sweep twice. Create one engine and pass it to every ' +
      'guard, as in idempotency({ engine, tenant })',
    'two engines',
  )
}

const reconciled = new WeakSet<object>()

/** Called when a reconciler is created for this engine: it reconciles `unknown` records. */
export function markReconciled(engine: object): void {
  reconciled.add(engine)
}

export function isReconciled(engine: object): boolean {
  return reconciled.has(engine)
}
