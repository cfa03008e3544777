import { sqliteStore, type SqliteStoreOptions } from '../../../src/stores/sqlite/index.ts'
import { runStoreCases, type StoreUnderTest } from '../run-store-cases.ts'
import { scratchFolder } from '../scratch-folder.ts'

function opener(options: Partial<SqliteStoreOptions>): StoreUnderTest['open'] {
  return (clock) => {
    const folder = scratchFolder()
    const store = sqliteStore({ path: folder.file('records.db'), clock, ...options })
    return { store, cleanUp: folder.remove }
  }
}

const DISCARD = 'its operator discards, with an audit: the durable cases test it'

runStoreCases({
  name: 'sqlite',
  open: opener({}),
  without: { history: 'the history option is off', discard: DISCARD },
})

runStoreCases({
  name: 'sqlite with a history, in table Other_table2',
  open: opener({ table: 'Other_table2', history: true }),
  without: { discard: DISCARD },
})
