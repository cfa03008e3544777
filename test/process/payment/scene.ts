/** Folders in which processes pay on an SQLite file and are killed, and their contents. */
import { cpSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import type { Bug } from './bugs.ts'
import type { Trace } from './kill.ts'
import { BOOKS, type Way, type Write } from './operation.ts'
import type { Program } from './programs.ts'
import { recover, type Aftermath, type Order, type Site } from './recovery.ts'
import { startWorker, type WorkerProcess } from '../worker-process.ts'

export interface KilledRun {
  readonly folder: string
  /** The reply that the client got before the kill. */
  readonly told: string | undefined
  /** Absent if the process was killed. */
  readonly trace: Trace | undefined
  readonly atMs: number
}

export interface StoppedRun extends KilledRun {
  /** Continues the process to its end. */
  readonly resume: () => Promise<{ readonly told: string | undefined }>
}

export interface RecoveryOptions {
  readonly way: Way
  readonly order: Order
}

export interface Scene {
  /** A folder with an unused store. */
  readonly fresh: string
  /** Runs a program on a copy of `from`, and kills it at a point. 0 kills it at none. */
  readonly run: (from: string, program: Program, killAt: number, bug?: Bug) => Promise<KilledRun>
  /** Runs a program on a copy of `from`, and stops it at a point. */
  readonly stop: (from: string, program: Program, stopAt: number) => Promise<StoppedRun>
  /** Recovers on a copy of the folder. */
  readonly recover: (killed: KilledRun, how: RecoveryOptions) => Promise<Aftermath>
  /** Recovers in the same folder, in which the stopped process may continue later. */
  readonly recoverThere: (stopped: StoppedRun, how: RecoveryOptions) => Promise<Aftermath>
  readonly remove: () => void
}

/** Writes synchronously, so that the transaction holds the file as short as possible. */
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

/** Waits until the process is stopped. */
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
      const victim = startWorker('payment/victim.ts', args)
      const code = await victim.ended
      const heard = heardFrom(victim)
      // The process failed: this call throws its error output.
      if (heard.trace === undefined && code !== null) await victim.written(Infinity)
      return { folder, ...heard, atMs: Date.now() }
    },
    stop: async (from, program, stopAt) => {
      const folder = copyOf(from)
      const victim = startWorker('payment/victim.ts', [folder, program, `${stopAt}`, 'SIGSTOP'])
      const pid = await stoppedAs(victim)
      const resume = async () => {
        process.kill(pid, 'SIGCONT')
        await victim.ended
        return heardFrom(victim)
      }
      return { folder, ...heardFrom(victim), atMs: Date.now(), resume }
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

async function recoverIn(folder: string, atMs: number, how: RecoveryOptions): Promise<Aftermath> {
  const path = join(folder, 'test.db')
  const clock = new FakeClock(atMs)
  // Only processes are killed, not the machine, so data need not reach the disk.
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
