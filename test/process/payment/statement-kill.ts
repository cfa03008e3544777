/**
 * Counts the statements that a process sends, and kills it (-9) at one of them. The database sees
 * only these statements, so it does not matter where between two of them the process dies.
 */
import type { OnStatement } from './databases.ts'
import type { Mark } from './kill.ts'

/**
 * `before`: the statement is not sent. `sent`: it is in flight, so it may take effect or not.
 * `answered`: it has taken effect, and the process has not seen the answer.
 */
export const MOMENTS = ['before', 'sent', 'answered'] as const

export type Moment = (typeof MOMENTS)[number]

export interface StatementTrace {
  readonly points: number
  readonly marks: readonly Mark[]
  /** The start of each statement, and whether it commits. */
  readonly statements: readonly { readonly sql: string; readonly commits: boolean }[]
}

const BEGINS = /^\s*(BEGIN|START TRANSACTION)/i
const ENDS = /^\s*(COMMIT|ROLLBACK)/i
/** Statements that change only the session. */
const SETS = /^\s*(SET|DO) /i
const READS = /^\s*\(?\s*SELECT/i
/** Functions of the PostgreSQL store that write. */
const WRITING =
  /_((claim|settle)(_one)?|step|sweep|take_unknown|postpone|act_write|message_\w+)(_\d+)?"\(/

export class StatementKill {
  readonly #killAt: number
  readonly #moment: Moment
  readonly #marks: Mark[] = []
  readonly #statements: { readonly sql: string; readonly commits: boolean }[] = []
  #isCounting = false
  #isOpen = false

  /** @param killAt the number of a statement, from 1. With 0 they are only counted. */
  constructor(killAt: number, moment: Moment) {
    this.#killAt = killAt
    this.#moment = moment
  }

  readonly onStatement: OnStatement = (sql, send) => {
    if (!this.#isCounting) return send()
    this.#count(sql)
    if (this.#statements.length !== this.#killAt) return send()
    if (this.#moment === 'before') die()
    const answer = send()
    if (this.#moment === 'answered') return answer.then(die)
    setImmediate(die)
    // The answer, or an error, never arrives.
    return new Promise(() => undefined)
  }

  #count(sql: string): void {
    const isEnd = ENDS.test(sql)
    if (BEGINS.test(sql)) this.#isOpen = true
    const isIdle = SETS.test(sql) || (READS.test(sql) && !WRITING.test(sql))
    const commits = isEnd || (!this.#isOpen && !isIdle)
    if (isEnd) this.#isOpen = false
    this.#statements.push({ sql: sql.replaceAll(/\s+/g, ' ').slice(0, 80), commits })
  }

  start(): void {
    this.#isCounting = true
  }

  mark(what: string): void {
    this.#marks.push({ what, at: this.#statements.length })
  }

  stop(): StatementTrace {
    this.#isCounting = false
    const statements = this.#statements
    return { points: statements.length, marks: this.#marks, statements }
  }
}

function die(): void {
  process.kill(process.pid, 'SIGKILL')
}
