import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { runStoreCases } from './run-store-cases.ts'

const transaction = 'the rows of a caller live in a database, and this store has none'

runStoreCases({
  name: 'memory',
  open: (clock) => ({ store: memoryStore({ clock }) }),
  without: { transaction, history: 'it was not asked for' },
})

runStoreCases({
  name: 'memory with a history',
  open: (clock) => ({ store: memoryStore({ clock, history: true }) }),
  without: { transaction },
})
