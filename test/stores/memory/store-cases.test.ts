import { memoryStore } from '../../../src/stores/memory/store.ts'
import { runStoreCases } from '../run-store-cases.ts'

const transaction = 'this store has no database for the rows of a caller'

runStoreCases({
  name: 'memory',
  open: (clock) => ({ store: memoryStore({ clock }) }),
  without: { transaction, history: 'the history option is off' },
})

runStoreCases({
  name: 'memory with a history',
  open: (clock) => ({ store: memoryStore({ clock, history: true }) }),
  without: { transaction },
})
