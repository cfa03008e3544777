/** What tests do with the tools that people write their transactions with, whatever the database. */

export interface Tool {
  /** Runs `body` in a transaction of the tool: committed if it resolves, rolled back if not. */
  transact<Result>(body: (open: OpenTransaction) => Promise<Result>): Promise<Result>
  /** What people hand in by mistake: each statement on it is a transaction of its own. */
  readonly mistake: unknown
}

export interface OpenTransaction {
  readonly tx: unknown
  readonly pay: (key: string) => Promise<unknown>
}

/** Sends a statement and gives what the driver would: rows, or what was done. */
export type Send = (sql: string) => Promise<unknown>

interface Shape {
  readonly transaction: (send: Send) => object
  readonly mistake: (send: Send) => object
}

/**
 * Those that need generated code or decorators, and those that nobody knows: objects of the
 * documented shape stand in.
 */
export const SHAPES: Readonly<Record<string, Shape>> = {
  // Of an interactive transaction: the whole client, without what belongs to the connection.
  'the shape of Prisma': {
    transaction: (send) => ({ $queryRawUnsafe: rowsOf(send), $transaction: () => undefined }),
    mistake: (send) => ({ $queryRawUnsafe: rowsOf(send), $connect: () => undefined }),
  },
  'the shape of TypeORM': {
    transaction: (send) => ({
      query: send,
      getRepository: () => undefined,
      queryRunner: { isTransactionActive: true },
    }),
    mistake: (send) => ({
      query: send,
      getRepository: () => undefined,
      queryRunner: undefined,
    }),
  },
  runSql: {
    transaction: (send) => ({ runSql: send }),
    mistake: (send) => ({ runSql: send }),
  },
}

/** Prisma gives rows in any case. */
const rowsOf = (send: Send) => async (sql: string) => {
  const answer = await send(sql)
  return Array.isArray(answer) ? answer : []
}
