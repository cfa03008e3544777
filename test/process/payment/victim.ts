/**
 * A process that pays on an SQLite file and is killed, or stopped, at one of its continuations. It
 * writes a line when it is about to be stopped, one when the client has its answer, and one at its
 * end with the points at which to kill it.
 */
import { writeSync } from 'node:fs'
import { join } from 'node:path'
import { StatementSync, type SQLInputValue, type StatementResultingChanges } from 'node:sqlite'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { KillPoint, type Blow } from './kill.ts'
import type { Write } from './operation.ts'
import { plant, type Bug } from './bugs.ts'
import { ShiftedClock, prepare, type Program } from './programs.ts'

const [folder, program, killAt, blow, bug] = process.argv.slice(2) as [
  string,
  Program,
  string,
  Blow,
  Bug?,
]
const report = (line: unknown) => writeSync(1, `${JSON.stringify(line)}\n`)
const kill = new KillPoint(Number(killAt), blow, () => void report({ stopped: process.pid }))

/** Intercepts every commit that writes. */
type RunStatement = (this: StatementSync, ...values: SQLInputValue[]) => StatementResultingChanges
const run = Reflect.get(StatementSync.prototype, 'run') as RunStatement
StatementSync.prototype.run = function (this: StatementSync, ...values: SQLInputValue[]) {
  const changes = run.apply(this, values)
  const { sourceSQL } = this
  if (sourceSQL === 'COMMIT' && kill.isLocked) kill.mark('committed')
  if (sourceSQL === 'BEGIN IMMEDIATE') kill.isLocked = true
  if (sourceSQL === 'COMMIT' || sourceSQL === 'ROLLBACK') kill.isLocked = false
  return changes
} as StatementSync['run']

const clock = new ShiftedClock()
const path = join(folder, 'test.db')
const store = sqliteStore({ path, clock })

/** Waits between its statements, with the transaction open. */
const write: Write = async (tx: SqliteTransaction, statements) => {
  for (const statement of statements) {
    tx.exec(statement)
    await new Promise((resolve) => setImmediate(resolve))
  }
}
const parts = plant(bug, {
  store,
  clock,
  write,
  folder,
  // A stopped process may send its charge later, when others have sent it too.
  dedups: blow === 'SIGSTOP',
  onOutside: (what) => kill.mark(what),
  tell: (told) => void report({ told }),
})
const go = prepare(program, parts)

kill.start()
await go()
report(kill.stop())
await store.close()
