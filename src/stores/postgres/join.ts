import { InvalidOptionsError } from '../../core/errors.ts'
import {
  answerOf,
  causesOf,
  driverErrorOf,
  foreignTransaction,
  type RunSql,
} from '../../core/foreign-transaction.ts'
import { JOINED } from './function-parts.ts'
import { isConflict, storeFailed } from './failures.ts'
import { textLiteral } from './literals.ts'

/** A call that joins a transaction which somebody else has begun. */
export interface Joining {
  /** For messages: the function that was given the transaction, and what is done in it. */
  readonly caller: string
  readonly operation: string
  /** A text that is new for every call. */
  readonly mark: string
  /** An expression that gives one text, without `?`, `$` and `:`. Made late: it may throw. */
  readonly call: () => string
}

const NO_TRANSACTION = 'no transaction'

/**
 * A setting that lasts until the end of the transaction. Where the next statement finds it gone,
 * the two had no transaction in common: it was a pool, or a connection without a BEGIN, and what
 * the caller wrote before is committed already. Nothing else tells the two apart for certain: a
 * transaction that has not written has no id yet, and with the extended protocol the time of a
 * lone statement differs from the time of its transaction.
 */
export async function joinTransaction(tx: unknown, joining: Joining): Promise<string> {
  const { caller, operation } = joining
  const run = foreignTransaction(tx, caller)
  const { mark, call } = toLiterals(joining)
  const set = `SELECT pg_catalog.set_config('${JOINED}', ${mark}, true) AS answer`
  await send(run, operation, set)
  return sendIf(run, { setting: JOINED, value: mark, call }, joining)
}

/** The same where the store has begun the transaction itself, and has marked it then. */
export async function joinOwnTransaction(
  tx: unknown,
  setting: string,
  joining: Joining,
): Promise<string> {
  const { call } = toLiterals(joining)
  const run = foreignTransaction(tx, joining.caller)
  return sendIf(run, { setting, value: `'yes'`, call }, joining)
}

interface Condition {
  readonly setting: string
  readonly value: string
  readonly call: string
}

/**
 * CASE does not make the call unless it has to. One row and one column, as text, so that every
 * tool passes it on as it is.
 */
async function sendIf(
  run: RunSql,
  { setting, value, call }: Condition,
  { caller, operation }: Joining,
): Promise<string> {
  const answer = await send(
    run,
    operation,
    `SELECT CASE WHEN pg_catalog.current_setting('${setting}', true) = ${value} THEN ${call}
  ELSE '${NO_TRANSACTION}' END AS answer`,
  )
  if (answer !== NO_TRANSACTION) return answer
  throw new InvalidOptionsError(
    `${caller} was given a connection on which no transaction is open: begin one, write, ` +
      `call ${caller}, and commit. What was written on it before is committed already`,
  )
}

/** What cannot be sent fails as a call that was refused. */
function toLiterals({ operation, mark, call }: Joining): { mark: string; call: string } {
  try {
    return { mark: textLiteral(mark), call: call() }
  } catch (error) {
    throw storeFailed(operation, error)
  }
}

async function send(run: RunSql, operation: string, sql: string): Promise<string> {
  try {
    return answerOf(await run(sql))
  } catch (error) {
    throw toFailure(error, operation, sql)
  }
}

/**
 * PostgreSQL has aborted the transaction in any case. A conflict is left as it is: whoever repeats
 * transactions for it must recognise it.
 */
function toFailure(error: unknown, operation: string, sql: string): unknown {
  if (error instanceof InvalidOptionsError) return error
  if (causesOf(error).some(isConflict)) return error
  return storeFailed(operation, driverErrorOf(error, sql))
}
