import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { runStoreCases } from './run-store-cases.ts'

runStoreCases({
  name: 'memory',
  open: (clock) => ({ store: memoryStore({ clock }) }),
  withoutTransactions: 'the rows of a caller live in a database, and this store has none',
})
