/**
 * Sends SQL into transactions that the caller has begun with a driver, a query builder or an ORM.
 * Each kind of client takes SQL and returns rows in a different way. The kinds are recognised by
 * their methods and properties; none of these packages is imported.
 *
 * Tests: test/stores/kit/foreign-transaction.test.ts.
 */
import { isThenable } from '../../core/thenable.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'

/**
 * Sends one statement without parameters into the transaction, and returns its rows, if any. The
 * text contains every value, and no `?`, `$` or `:`, which a tool could take for a placeholder.
 */
export type RunSql = (sql: string) => Promise<readonly Record<string, unknown>[]>

/**
 * For a client that the package does not recognise: `runSql` sends the statement into the open
 * transaction and returns its rows as objects.
 */
export interface ForeignTransaction {
  readonly runSql: (sql: string) => PromiseLike<readonly unknown[]>
}

/**
 * Returns a function that sends SQL into the transaction. Throws `InvalidOptionsError` if `tx` is
 * not recognised, or is recognised and not a transaction: a pool would run each statement on any
 * connection and commit it at once, separately from the caller's other statements. Only the
 * database knows whether a transaction is open on a plain connection, so the store must query it.
 *
 * `caller` names the function that got `tx`, for error messages.
 */
export function foreignTransaction(tx: unknown, caller = 'completeIn'): RunSql {
  const isObject = typeof tx === 'object' && tx !== null
  if (!isObject && typeof tx !== 'function') throw unknownKind(tx, caller)
  const client = tx as AnyClient
  const kind = KINDS.find(({ fits }) => fits(client))
  if (kind === undefined) throw unknownKind(tx, caller)
  const fault = kind.fault(client)
  if (fault !== undefined) throw new InvalidOptionsError(`${caller} was given ${fault}`)
  return async (sql) => {
    const answer = kind.send(client, sql)
    if (!isThenable(answer)) {
      throw new InvalidOptionsError(`${caller} was given ${kind.name} that returns no promise`)
    }
    return rowsOf(await answer)
  }
}

/** The text in the only column of the only row. Some tools change the name of the column. */
export function answerOf(rows: readonly Record<string, unknown>[]): string {
  const [row] = rows
  const values = typeof row === 'object' && row !== null ? Object.values(row) : []
  const [value] = values
  // A driver that is configured not to convert values returns bytes.
  const answer = value instanceof Uint8Array ? new TextDecoder().decode(value) : value
  if (rows.length === 1 && values.length === 1 && typeof answer === 'string') return answer
  throw new Error(
    'the transaction returned no readable answer: expected one row with one column of text',
  )
}

/** Tools wrap the driver's error as `cause`. Bounds chains that are long or circular. */
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

/** Prisma sets no `cause`: it has the error of the database as data in `meta`. */
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
 * The driver's error inside the error of a tool. Removes the statement from its message: some tools
 * put it there, and it contains the whole result.
 */
export function driverErrorOf(error: unknown, sql: string): unknown {
  const causes = causesOf(error)
  const own = causes.findLast((cause) => 'code' in cause) ?? causes[0]
  if (own === undefined || !own.message.includes(sql)) return own ?? error
  const short = new Error(own.message.replace(sql, () => '…'))
  const names = ['code', 'errno', 'sqlState'].filter((name) => name in own)
  const fields = own as unknown as Record<string, unknown>
  return Object.assign(short, Object.fromEntries(names.map((name) => [name, fields[name]])))
}

type AnyClient = Readonly<Record<string | symbol, unknown>> & ((...values: never[]) => unknown)

interface Kind {
  readonly name: string
  readonly fits: (tx: AnyClient) => boolean
  /** If the client is no open transaction: names it and says what to pass instead. */
  readonly fault: (tx: AnyClient) => string | undefined
  readonly send: (tx: AnyClient, sql: string) => unknown
}

/** The most specific kinds first: many clients have a `query`, and some an `execute`. */
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
        ? 'the sql of postgres.js itself, which is a pool: pass the sql that sql.begin() passes ' +
          'to its callback'
        : undefined,
    send: (tx, sql) => call(tx, 'unsafe', sql),
  },
  {
    name: 'a transaction of Knex',
    fits: (tx) => typeof tx === 'function' && has(tx, 'raw') && has(tx, 'queryBuilder'),
    fault: (tx) => {
      if (tx['isTransaction'] !== true) {
        return 'Knex itself, which is a pool: pass the trx of knex.transaction()'
      }
      const isOver = has(tx, 'isCompleted') && call(tx, 'isCompleted') === true
      return isOver ? 'a transaction of Knex that has ended: pass one that is open' : undefined
    },
    send: (tx, sql) => call(tx, 'raw', sql),
  },
  {
    name: 'a transaction of Kysely',
    fits: (tx) => has(tx, 'executeQuery') && has(tx, 'getExecutor'),
    fault: (tx) =>
      tx['isTransaction'] === true
        ? undefined
        : 'Kysely itself, which is a pool: pass the trx of db.transaction().execute()',
    send: (tx, sql) => call(tx, 'executeQuery', kyselyQuery(sql)),
  },
  {
    name: 'a transaction of Prisma',
    fits: (tx) => has(tx, '$queryRawUnsafe'),
    // A transaction of Prisma has all methods of the client, except those of the connection.
    fault: (tx) =>
      has(tx, '$connect')
        ? 'the Prisma client itself, which is a pool: pass the tx of ' +
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
        : "Drizzle's db itself, which is a pool: pass the tx of db.transaction()",
    send: (tx, sql) => call(tx, 'execute', sql),
  },
  {
    name: 'an entity manager of TypeORM',
    fits: (tx) => has(tx, 'query') && (has(tx, 'getRepository') || 'isTransactionActive' in tx),
    fault: (tx) => {
      const runner = 'isTransactionActive' in tx ? tx : tx['queryRunner']
      const isOpen = (runner as AnyClient | undefined)?.['isTransactionActive'] === true
      return isOpen
        ? undefined
        : 'an entity manager of TypeORM without a transaction: pass the one that ' +
            'dataSource.transaction() passes to its callback'
    },
    send: (tx, sql) => call(tx, 'query', sql),
  },
  {
    name: 'a pool',
    fits: (tx) => has(tx, 'query') && POOL_PROPERTIES.some((name) => name in tx),
    fault: () =>
      'a pool, which runs each statement on any connection and commits it at once: take one ' +
      'connection, begin a transaction on it, and pass that connection',
    send: () => undefined,
  },
  {
    name: 'a connection of mysql2',
    fits: (tx) => has(tx, 'query') && has(tx, 'promise'),
    fault: () => undefined,
    send: (tx, sql) => call(call(tx, 'promise') as AnyClient, 'query', sql),
  },
  {
    name: 'a connection',
    fits: (tx) => typeof tx === 'object' && has(tx, 'query'),
    fault: () => undefined,
    send: (tx, sql) => call(tx, 'query', sql),
  },
]

/** Properties of a pool of `pg`, of a pool or cluster of `mysql2`, and of `pg-promise`. */
const POOL_PROPERTIES = ['totalCount', 'getConnection', '$pool'] as const

/** The same object as `CompiledQuery.raw` of Kysely returns. */
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
 * Tools return an array of rows, an object with `rows`, or a pair of rows and columns. For a
 * statement without rows, some return an object with the number of changed rows.
 */
function rowsOf(answer: unknown): readonly Record<string, unknown>[] {
  if (typeof answer !== 'object' || answer === null)
    throw new Error('the transaction returned no rows')
  const rows = Array.isArray(answer) ? answer : (answer as { rows?: unknown }).rows
  if (!Array.isArray(rows)) return []
  const [first] = rows as readonly unknown[]
  return (Array.isArray(first) ? first : rows) as readonly Record<string, unknown>[]
}

function has(tx: AnyClient, method: string): boolean {
  return typeof tx[method] === 'function'
}

function call(tx: AnyClient, method: string, ...values: readonly unknown[]): unknown {
  return (tx[method] as (...values: readonly unknown[]) => unknown).call(tx, ...values)
}

function unknownKind(tx: unknown, caller: string): InvalidOptionsError {
  return new InvalidOptionsError(
    `${caller} takes an open transaction: a client of pg, a sql of postgres.js, a connection of ` +
      'mysql2, a transaction of Drizzle, Kysely, Knex, Prisma or TypeORM, or { runSql } for any ' +
      `other, got ${typeof tx === 'function' ? 'a function' : describe(tx)}`,
  )
}
