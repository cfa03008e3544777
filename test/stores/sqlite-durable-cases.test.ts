import { DatabaseSync } from 'node:sqlite'
import {
  sqliteStore,
  type SqliteStoreOptions,
  type SqliteTransaction,
} from '../../src/stores/sqlite/index.ts'
import { runDurableCases, type DurableStoreUnderTest } from './run-durable-cases.ts'
import { scratchFolder } from './scratch-folder.ts'

function opener(options: Partial<SqliteStoreOptions>): DurableStoreUnderTest['open'] {
  return (clock) => {
    const folder = scratchFolder()
    const path = folder.file('records.db')
    const store = sqliteStore({ path, clock, ...options })
    const app = new DatabaseSync(path)
    app.exec('CREATE TABLE note (text TEXT)')
    const cleanUp = async () => {
      await store.close()
      app.close()
      folder.remove()
    }
    return {
      store,
      cleanUp,
      transact: (work) => transact(path, work),
      note: (tx, text) => {
        const db = tx as SqliteTransaction
        db.prepare('INSERT INTO note (text) VALUES (?)').run(text)
      },
      notes: async () =>
        app
          .prepare('SELECT text FROM note')
          .all()
          .map((row) => String(row['text'])),
      commitInside: (tx) => (tx as SqliteTransaction).exec('COMMIT'),
    }
  }
}

/** On a connection of its own, which waits for the others without blocking the process. */
async function transact(path: string, work: (tx: unknown) => void | Promise<void>) {
  const db = new DatabaseSync(path)
  try {
    await begin(db)
    await work(db)
    db.exec('COMMIT')
  } finally {
    db.close()
  }
}

async function begin(db: DatabaseSync): Promise<void> {
  for (;;) {
    try {
      return db.exec('BEGIN IMMEDIATE')
    } catch (error) {
      if (!String(error).includes('locked')) throw error
    }
    await new Promise((resolve) => setImmediate(resolve))
  }
}

runDurableCases({
  name: 'sqlite',
  open: opener({}),
  without: { history: 'it was not asked for' },
})

runDurableCases({
  name: 'sqlite with a history, in table Other_table2',
  open: opener({ table: 'Other_table2', history: true }),
})
