/**
 * Transactions that somebody else has begun: with a driver, a query builder or an ORM. What they
 * have in common is that one can send them SQL and get rows back, each in its own way. Told apart
 * by their shape; none of these packages is imported.
 */
import { InvalidOptionsError } from './errors.ts'
import { describe } from './options.ts'

/**
 * Sends one statement without parameters into the transaction, and gives its rows if it has any.
 * Every value must be in the text, written so that no tool takes a part of it for a placeholder:
 * without `?`, `$` and `:`.
 */
export type RunSql = (sql: string) => Promise<readonly Record<string, unknown>[]>

/**
 * For a client that is not known here: `runSql` sends the statement into the open transaction and
 * gives its rows as objects.
 */
export interface ForeignTransaction {
  readonly runSql: (sql: string) => PromiseLike<readonly unknown[]>
}

/**
 * How to send SQL into the transaction. Throws `InvalidOptionsError` for what is not known, and for
 * what is known not to be a transaction: a pool would run each statement on a connection of its
 * own and commit it at once, apart from everything else. Whether a transaction is really open on a
 * plain connection only the database can tell, and the store must ask it.
 *
 * `caller` is for messages: the function that was given it.
 */
export function foreignTransaction(tx: unknown, caller = 'completeIn'): RunSql {
  const isObject = typeof tx === 'object' && tx !== null
  if (!isObject && typeof tx !== 'function') throw unknownKind(tx, caller)
  const given = tx as Given
  const kind = KINDS.find(({ fits }) => fits(given))
  if (kind === undefined) throw unknownKind(tx, caller)
  const fault = kind.fault(given)
  if (fault !== undefined) throw new InvalidOptionsError(`${caller} was given ${fault}`)
  return async (sql) => {
    const answer = kind.send(given, sql)
    if (!isThenable(answer)) {
      throw new InvalidOptionsError(`${caller} was given ${kind.name} that returns no promise`)
    }
    return rowsOf(await answer)
  }
}

/** The text in the only column of the only row, whatever a tool has made of the column's name. */
export function answerOf(rows: readonly Record<string, unknown>[]): string {
  const [row] = rows
  const values = typeof row === 'object' && row !== null ? Object.values(row) : []
  const [given] = values
  // A driver that was told to convert nothing gives bytes.
  const answer = given instanceof Uint8Array ? new TextDecoder().decode(given) : given
  if (rows.length === 1 && values.length === 1 && typeof answer === 'string') return answer
  throw new Error('the transaction gave no answer that can be read')
}

/** Errors of tools have that of the driver as their cause. A longer chain is about other things. */
const CAUSES_MAX = 8

/** An error and its causes, the outermost first. */
export function causesOf(error: unknown): Error[] {
  const causes: Error[] = []
  let current = error
  while (causes.length < CAUSES_MAX && current instanceof Error) {
    causes.push(current)
    current = current.cause ?? prismaCause(current)
  }
  return causes
}

/** Prisma has no `cause`: it says in data what the database said. */
function prismaCause(error: Error): Error | undefined {
  const { meta } = error as Error & {
    meta?: { driverAdapterError?: { cause?: Partial<Record<string, unknown>> } }
  }
  const cause = meta?.driverAdapterError?.cause
  if (typeof cause?.['originalCode'] !== 'string') return undefined
  const { originalCode: code, originalMessage } = cause
  return Object.assign(new Error(String(originalMessage)), { code, errno: Number(code) })
}

/**
 * The driver's error within that of a tool, without the statement: some tools put it into their
 * message, and it holds the whole result.
 */
export function driverErrorOf(error: unknown, sql: string): unknown {
  const causes = causesOf(error)
  const own = causes.findLast((cause) => 'code' in cause) ?? causes[0]
  if (own === undefined || !own.message.includes(sql)) return own ?? error
  const short = new Error(own.message.replace(sql, () => '…'))
  const marks = ['code', 'errno', 'sqlState'].filter((mark) => mark in own)
  const told = own as unknown as Record<string, unknown>
  return Object.assign(short, Object.fromEntries(marks.map((mark) => [mark, told[mark]])))
}

type Given = Readonly<Record<string | symbol, unknown>> & ((...values: never[]) => unknown)

interface Kind {
  readonly name: string
  readonly fits: (tx: Given) => boolean
  /** What it is instead of a transaction, and what to do about that. */
  readonly fault: (tx: Given) => string | undefined
  readonly send: (tx: Given, sql: string) => unknown
}

/** The most telling marks first: many of these have a `query`, and some an `execute`. */
const KINDS: readonly Kind[] = [
  {
    name: 'an object with runSql',
    fits: (tx) => has(tx, 'runSql'),
    fault: () => undefined,
    send: (tx, sql) => call(tx, 'runSql', sql),
  },
  {
    name: 'a sql of postgres.js',
    fits: (tx) => typeof tx === 'function' && has(tx, 'unsafe'),
    fault: (tx) =>
      has(tx, 'begin')
        ? 'the sql of postgres.js itself, which is a pool: give it the one that sql.begin() ' +
          'hands to its callback'
        : undefined,
    send: (tx, sql) => call(tx, 'unsafe', sql),
  },
  {
    name: 'a transaction of Knex',
    fits: (tx) => typeof tx === 'function' && has(tx, 'raw') && has(tx, 'queryBuilder'),
    fault: (tx) => {
      if (tx['isTransaction'] !== true) {
        return 'Knex itself, which is a pool: give it the trx of knex.transaction()'
      }
      const isOver = has(tx, 'isCompleted') && call(tx, 'isCompleted') === true
      return isOver ? 'a transaction of Knex that has ended' : undefined
    },
    send: (tx, sql) => call(tx, 'raw', sql),
  },
  {
    name: 'a transaction of Kysely',
    fits: (tx) => has(tx, 'executeQuery') && has(tx, 'getExecutor'),
    fault: (tx) =>
      tx['isTransaction'] === true
        ? undefined
        : 'Kysely itself, which is a pool: give it the trx of db.transaction().execute()',
    send: (tx, sql) => call(tx, 'executeQuery', kyselyQuery(sql)),
  },
  {
    name: 'a transaction of Prisma',
    fits: (tx) => has(tx, '$queryRawUnsafe'),
    // In its transactions the whole client is there, but for what belongs to the connection.
    fault: (tx) =>
      has(tx, '$connect')
        ? 'the Prisma client itself, which is a pool: give it the tx of ' +
          'prisma.$transaction(async (tx) => …)'
        : undefined,
    send: (tx, sql) => call(tx, '$queryRawUnsafe', sql),
  },
  {
    name: 'a transaction of Drizzle',
    fits: (tx) => has(tx, 'execute') && 'dialect' in tx && 'session' in tx,
    fault: (tx) =>
      has(tx, 'rollback')
        ? undefined
        : "Drizzle's db itself, which is a pool: give it the tx of db.transaction()",
    send: (tx, sql) => call(tx, 'execute', sql),
  },
  {
    name: 'an entity manager of TypeORM',
    fits: (tx) => has(tx, 'query') && (has(tx, 'getRepository') || 'isTransactionActive' in tx),
    fault: (tx) => {
      const runner = 'isTransactionActive' in tx ? tx : tx['queryRunner']
      const isOpen = (runner as Given | undefined)?.['isTransactionActive'] === true
      return isOpen
        ? undefined
        : 'an entity manager of TypeORM without a transaction: give it the one that ' +
            'dataSource.transaction() hands to its callback'
    },
    send: (tx, sql) => call(tx, 'query', sql),
  },
  {
    name: 'a pool',
    fits: (tx) => has(tx, 'query') && POOL_MARKS.some((mark) => mark in tx),
    fault: () =>
      'a pool, which runs each statement on any connection and commits it at once: take one ' +
      'connection, begin a transaction on it, and give it that connection',
    send: () => undefined,
  },
  {
    name: 'a connection of mysql2',
    fits: (tx) => has(tx, 'query') && has(tx, 'promise'),
    fault: () => undefined,
    send: (tx, sql) => call(call(tx, 'promise') as Given, 'query', sql),
  },
  {
    name: 'a connection',
    fits: (tx) => typeof tx === 'object' && has(tx, 'query'),
    fault: () => undefined,
    send: (tx, sql) => call(tx, 'query', sql),
  },
]

/** Of `pg`, of `mysql2` and its clusters, and of `pg-promise`. */
const POOL_MARKS = ['totalCount', 'getConnection', '$pool'] as const

/** What `CompiledQuery.raw` of Kysely makes. */
function kyselyQuery(sql: string): unknown {
  return Object.freeze({
    sql,
    parameters: Object.freeze([]),
    query: Object.freeze({
      kind: 'RawNode',
      sqlFragments: Object.freeze([sql]),
      parameters: Object.freeze([]),
    }),
    queryId: Object.freeze({ queryId: 'oncekey' }),
  })
}

/**
 * Rows come by themselves, in `rows`, or first in a pair with the columns. What has none comes as
 * an object that says what it did, as some drivers answer an UPDATE.
 */
function rowsOf(answer: unknown): readonly Record<string, unknown>[] {
  if (typeof answer !== 'object' || answer === null) throw new Error('the transaction gave no rows')
  const rows = Array.isArray(answer) ? answer : (answer as { rows?: unknown }).rows
  if (!Array.isArray(rows)) return []
  const [first] = rows as readonly unknown[]
  return (Array.isArray(first) ? first : rows) as readonly Record<string, unknown>[]
}

function has(tx: Given, method: string): boolean {
  return typeof tx[method] === 'function'
}

function call(tx: Given, method: string, ...values: readonly unknown[]): unknown {
  return (tx[method] as (...values: readonly unknown[]) => unknown).call(tx, ...values)
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  if ((typeof value !== 'object' || value === null) && typeof value !== 'function') return false
  return typeof (value as { then?: unknown }).then === 'function'
}

function unknownKind(tx: unknown, caller: string): InvalidOptionsError {
  return new InvalidOptionsError(
    `${caller} takes an open transaction: a client of pg, a sql of postgres.js, a connection of ` +
      'mysql2, a transaction of Drizzle, Kysely, Knex, Prisma or TypeORM, or { runSql } for any ' +
      `other, got ${typeof tx === 'function' ? 'a function' : describe(tx)}`,
  )
}
