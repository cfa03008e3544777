import { cachedStore, memoryCache } from '../../src/stores/cached/index.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { runStoreCases } from './run-store-cases.ts'

const transaction = 'the durable store has none'

runStoreCases({
  name: 'cached, memory in front of memory',
  open: (clock) => {
    const durable = memoryStore({ clock, history: true })
    return { store: cachedStore({ durable, cache: memoryCache({ clock }), clock }) }
  },
  without: { transaction },
})

runStoreCases({
  name: 'cached, filled by replays alone',
  open: (clock) => {
    const durable = memoryStore({ clock })
    const cache = memoryCache({ clock })
    return { store: cachedStore({ durable, cache, clock, fillOnSettle: false }) }
  },
  without: { transaction, history: 'the durable store was not asked for one' },
})
