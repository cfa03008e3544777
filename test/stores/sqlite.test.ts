import { sqliteStore } from '../../src/stores/sqlite/index.ts'
import { runStoreCases } from './run-store-cases.ts'
import { scratchFolder } from './scratch-folder.ts'

for (const table of [undefined, 'Other_table2']) {
  runStoreCases({
    name: table === undefined ? 'sqlite' : `sqlite in table ${table}`,
    open: (clock) => {
      const folder = scratchFolder()
      const options = { path: folder.file('records.db'), clock }
      const store = sqliteStore(table === undefined ? options : { ...options, table })
      return { store, cleanUp: folder.remove }
    },
  })
}
