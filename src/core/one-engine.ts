import type { Store } from './store.ts'
import { warnOnce } from './warn.ts'

/** The newest engine of each store. */
const engines = new WeakMap<Store, { readonly isClosed: boolean }>()

/**
 * Warns where a store gets a second engine while the first is open. Both are correct, but they
 * batch apart, sweep twice, and a duplicate that waits in one is not woken by the other.
 */
export function noteEngine(store: Store, engine: { readonly isClosed: boolean }): void {
  const isShared = engines.get(store)?.isClosed === false
  engines.set(store, engine)
  if (!isShared) return
  warnOnce(
    `the ${store.name} store has two engines in this process: by createEngine({ store }) twice, ` +
      'or by createEngine({ store }) beside a guard with { store }. They batch their calls apart ' +
      'and sweep twice. Make one engine and give it to every guard, as in ' +
      'idempotency({ engine, tenant })',
    'two engines',
  )
}
