/** Folders in which processes pay on an SQLite file and are killed, and what is found there. */
import { cpSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { sqliteStore, type SqliteTransaction } from '../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import type { Bug } from './payment-bugs.ts'
import type { Trace } from './payment-kill.ts'
import { BOOKS, type Way, type Write } from './payment-operation.ts'
import type { Program } from './payment-programs.ts'
import { recover, type Aftermath, type Order, type Site } from './payment-recovery.ts'
import { startWorker } from './worker-process.ts'

export interface Killed {
  readonly folder: string
  /** What the client had been answered. */
  readonly told: string | undefined
  /** Absent where it was killed. */
  readonly trace: Trace | undefined
  readonly atMs: number
}

export interface Scene {
  /** A folder in which nothing has happened yet. */
  readonly fresh: string
  /** Runs a program on a copy of `from`, and kills it at a point; 0: at none. */
  readonly run: (from: string, program: Program, killAt: number, bug?: Bug) => Promise<Killed>
  /** What becomes of it, on a copy of its own. */
  readonly recover: (killed: Killed, how: { way: Way; order: Order }) => Promise<Aftermath>
  readonly remove: () => void
}

/** At once, whatever the driver: the work then holds the file for no longer than it must. */
const write: Write = (tx: SqliteTransaction, statements) => {
  for (const statement of statements) tx.exec(statement)
  return undefined
}

export async function openScene(): Promise<Scene> {
  const root = mkdtempSync(join(tmpdir(), 'oncekey-payments-'))
  let folders = 0
  const copyOf = (folder: string) => {
    const copy = join(root, `${++folders}`)
    cpSync(folder, copy, { recursive: true })
    return copy
  }
  const fresh = join(root, 'fresh')
  mkdirSync(fresh)
  const app = new DatabaseSync(join(fresh, 'test.db'))
  for (const statement of BOOKS) app.exec(statement)
  app.close()
  await sqliteStore({ path: join(fresh, 'test.db') }).close()

  return {
    fresh,
    run: async (from, program, killAt, bug) => {
      const folder = copyOf(from)
      const args = [folder, program, `${killAt}`, ...(bug === undefined ? [] : [bug])]
      const victim = startWorker('payment-victim.ts', args)
      const code = await victim.ended
      const lines = victim.lines.map((line) => JSON.parse(line) as Trace & { told?: string })
      const told = lines.find((line) => line.told !== undefined)?.told
      const trace = lines.find((line) => line.points !== undefined)
      if (trace === undefined && code !== null) await victim.written(Number.POSITIVE_INFINITY)
      return { folder, told, trace, atMs: Date.now() }
    },
    recover: async ({ folder, atMs }, how) => {
      const copy = copyOf(folder)
      const path = join(copy, 'test.db')
      const clock = new FakeClock(atMs)
      const store = sqliteStore({ path, clock })
      const books = new DatabaseSync(path, { readOnly: true })
      const site: Site = {
        store,
        clock,
        write,
        folder: copy,
        pass: (ms) => clock.advanceAsync(ms),
        rows: async (sql) => books.prepare(sql).all(),
      }
      try {
        return await recover(site, how)
      } finally {
        books.close()
        await store.close()
        rmSync(copy, { recursive: true })
      }
    },
    remove: () => rmSync(root, { recursive: true }),
  }
}
