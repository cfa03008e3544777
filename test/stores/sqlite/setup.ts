import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import type { Lease } from '../../../src/core/store/store.ts'
import {
  sqliteStore,
  type SqliteStore,
  type SqliteStoreOptions,
} from '../../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, RETENTION_MS } from '../../../src/testing/store-cases/store-case.ts'
import { scratchFolder } from '../scratch-folder.ts'

/** A new file for one test. Closed and removed after the test. */
export function setupFile() {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const clock = new FakeClock()
  const path = folder.file('records.db')

  const open = (options: Partial<SqliteStoreOptions> = {}): SqliteStore => {
    const store = sqliteStore({ path, clock, ...options })
    onTestFinished(() => store.close())
    return store
  }
  const connect = (): DatabaseSync => {
    const db = new DatabaseSync(path)
    onTestFinished(() => {
      if (db.isOpen) db.close()
    })
    return db
  }
  return { folder, path, clock, open, connect }
}

/** A store, and an application's connection to the same file with a `payment` table. */
export function setup(options: Partial<SqliteStoreOptions> = {}) {
  const file = setupFile()
  const store = file.open(options)
  const app = file.connect()
  app.exec('CREATE TABLE payment (amount INTEGER)')
  const amounts = () =>
    app
      .prepare('SELECT amount FROM payment')
      .all()
      .map((row) => row['amount'])
  return { ...file, store, app, amounts }
}

export const completion = (text = 'done') => ({ result: bytes(text), retentionMs: RETENTION_MS })

/** An asynchronous transaction that is open until `finish` is called. */
export async function openTransaction(store: SqliteStore, lease: Lease) {
  const entered = Promise.withResolvers<void>()
  const finished = Promise.withResolvers<void>()
  const outcome = store.transaction(lease, async () => {
    entered.resolve()
    await finished.promise
    return completion()
  })
  await entered.promise
  return { outcome, finish: finished.resolve }
}

/** Whether a promise is still pending after a few turns of the event loop. */
export async function isPending(promise: Promise<unknown>): Promise<boolean> {
  let pending = true
  const settled = () => {
    pending = false
  }
  promise.then(settled, settled)
  for (let turn = 0; turn < 5; turn++) {
    await new Promise((resolve) => {
      setImmediate(resolve)
    })
  }
  return pending
}
