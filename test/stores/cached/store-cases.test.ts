import { cachedStore, memoryCache } from '../../../src/stores/cached/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { runStoreCases } from '../run-store-cases.ts'

const transaction = 'the durable store has no transactions'

runStoreCases({
  name: 'memory cache over a memory store',
  open: (clock) => {
    const durable = memoryStore({ clock, history: true })
    return { store: cachedStore({ durable, cache: memoryCache({ clock }), clock }) }
  },
  without: { transaction },
})

runStoreCases({
  name: 'memory cache that only replays fill',
  open: (clock) => {
    const durable = memoryStore({ clock })
    const cache = memoryCache({ clock })
    return { store: cachedStore({ durable, cache, clock, fillOnSettle: false }) }
  },
  without: { transaction, history: 'the history option of the durable store is off' },
})
