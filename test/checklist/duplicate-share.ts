import type { EngineEvent } from '../../src/core/events.ts'

/** The share of a tenant's requests that were duplicates, from the events of the engine. */
export function duplicateShare(events: readonly EngineEvent[], tenant: string): number {
  const kinds = events.flatMap((event) =>
    'tenant' in event && event.tenant === tenant ? [event.kind] : [],
  )
  const all = kinds.filter((kind) => kind.startsWith('reserve_'))
  return 1 - all.filter((kind) => kind === 'reserve_created').length / all.length
}
