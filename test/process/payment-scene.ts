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
import { startWorker, type WorkerProcess } from './worker-process.ts'

export interface Killed {
  readonly folder: string
  /** What the client had been answered. */
  readonly told: string | undefined
  /** Absent where it was killed. */
  readonly trace: Trace | undefined
  readonly atMs: number
}

export interface Stopped extends Killed {
  /** Lets it go on, to its end. */
  readonly goOn: () => Promise<{ readonly told: string | undefined }>
}

export interface How {
  readonly way: Way
  readonly order: Order
}

export interface Scene {
  /** A folder in which nothing has happened yet. */
  readonly fresh: string
  /** Runs a program on a copy of `from`, and kills it at a point; 0: at none. */
  readonly run: (from: string, program: Program, killAt: number, bug?: Bug) => Promise<Killed>
  /** Runs a program on a copy of `from`, and has it stand still at a point. */
  readonly stop: (from: string, program: Program, stopAt: number) => Promise<Stopped>
  /** What becomes of it, on a copy of its own. */
  readonly recover: (killed: Killed, how: How) => Promise<Aftermath>
  /** What becomes of it there, where the one that stands still may go on later. */
  readonly recoverThere: (stopped: Stopped, how: How) => Promise<Aftermath>
  readonly remove: () => void
}

/** At once: the work then holds the file for no longer than it must. */
const write: Write = (tx: SqliteTransaction, statements) => {
  for (const statement of statements) tx.exec(statement)
  return undefined
}

type Line = Partial<Trace> & { readonly told?: string }

function heardFrom({ lines }: WorkerProcess) {
  const heard = lines.map((line) => JSON.parse(line) as Line)
  const told = heard.find((line) => line.told !== undefined)?.told
  const trace = heard.find((line) => line.points !== undefined) as Trace | undefined
  return { told, trace }
}

/** Waits until it stands still. */
async function stoppedAs(victim: WorkerProcess): Promise<number> {
  for (let lines = 1; ; lines++) {
    await victim.written(lines)
    const { stopped } = JSON.parse(victim.lines[lines - 1]!) as { stopped?: number }
    if (stopped !== undefined) return stopped
  }
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
      const args = [folder, program, `${killAt}`, 'SIGKILL', ...(bug === undefined ? [] : [bug])]
      const victim = startWorker('payment-victim.ts', args)
      const code = await victim.ended
      const heard = heardFrom(victim)
      // It has failed, and says why.
      if (heard.trace === undefined && code !== null) await victim.written(Infinity)
      return { folder, ...heard, atMs: Date.now() }
    },
    stop: async (from, program, stopAt) => {
      const folder = copyOf(from)
      const victim = startWorker('payment-victim.ts', [folder, program, `${stopAt}`, 'SIGSTOP'])
      const pid = await stoppedAs(victim)
      const goOn = async () => {
        process.kill(pid, 'SIGCONT')
        await victim.ended
        return heardFrom(victim)
      }
      return { folder, ...heardFrom(victim), atMs: Date.now(), goOn }
    },
    recover: async (killed, how) => {
      const folder = copyOf(killed.folder)
      const aftermath = await recoverIn(folder, killed.atMs, how)
      rmSync(folder, { recursive: true })
      return aftermath
    },
    recoverThere: ({ folder, atMs }, how) => recoverIn(folder, atMs, how),
    remove: () => rmSync(root, { recursive: true }),
  }
}

async function recoverIn(folder: string, atMs: number, how: How): Promise<Aftermath> {
  const path = join(folder, 'test.db')
  const clock = new FakeClock(atMs)
  // No power is cut here: what is written need not reach the disk to be read.
  const store = sqliteStore({ path, clock, synchronous: 'normal' })
  const books = new DatabaseSync(path, { readOnly: true })
  const site: Site = {
    store,
    clock,
    write,
    folder,
    pass: (ms) => clock.advanceAsync(ms),
    rows: async (sql) => books.prepare(sql).all(),
  }
  try {
    return await recover(site, how)
  } finally {
    books.close()
    await store.close()
  }
}
