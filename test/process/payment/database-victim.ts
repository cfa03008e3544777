/**
 * A process that pays on PostgreSQL or MariaDB and is killed at one of its statements. It writes a
 * line when the client has its answer, and one at its end with the points at which to kill it.
 */
import { writeSync } from 'node:fs'
import { openPaymentDatabase, type DatabaseKind } from './databases.ts'
import { ShiftedClock, prepare, type Program } from './programs.ts'
import { StatementKill, type Moment } from './statement-kill.ts'

const [kind, url, folder, program, killAt, moment] = process.argv.slice(2) as [
  DatabaseKind,
  string,
  string,
  Program,
  string,
  Moment,
]
const kill = new StatementKill(Number(killAt), moment)
const report = (line: unknown) => writeSync(1, `${JSON.stringify(line)}\n`)
const clock = new ShiftedClock()
const { onStatement } = kill
const { store, write, close } = await openPaymentDatabase(kind, url, { clock, onStatement })
const go = prepare(program, {
  store,
  clock,
  write,
  folder,
  dedups: false,
  onOutside: (what) => kill.mark(what),
  tell: (told) => void report({ told }),
})

kill.start()
await go()
report(kill.stop())
await close()
