import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import {
  sqliteStore,
  type SqliteStoreOptions,
  type SqliteTransaction,
} from '../../../../src/stores/sqlite/index.ts'
import type { FakeClock } from '../../../../src/testing/fake-clock.ts'
import type { OpenDurableStore } from '../../run-durable-cases.ts'
import { scratchFolder } from '../../scratch-folder.ts'

/** A store in a new file with one table of the caller. Removed after the test. */
export function openDurableFile(options: Partial<SqliteStoreOptions> = {}) {
  return (clock: FakeClock): OpenDurableStore & { readonly path: string } => {
    const folder = scratchFolder()
    onTestFinished(folder.remove)
    const path = folder.file('records.db')
    const store = sqliteStore({ path, clock, ...options })
    onTestFinished(() => store.close())
    const app = new DatabaseSync(path)
    onTestFinished(() => app.close())
    app.exec('CREATE TABLE note (text TEXT)')
    return {
      path,
      store,
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

/** Uses a new connection, which waits for the others without blocking the process. */
async function transact(path: string, work: (tx: unknown) => void | Promise<void>): Promise<void> {
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
