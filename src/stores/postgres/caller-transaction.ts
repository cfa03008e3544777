import { InvalidOptionsError } from '../../core/errors.ts'
import {
  answerOf,
  causesOf,
  driverErrorOf,
  foreignTransaction,
  type RunSql,
} from '../kit/foreign-transaction.ts'
import { JOINED } from './functions/parts.ts'
import { isConflict, storeFailed } from './failures.ts'
import { textLiteral } from './driver/values.ts'

/** A call that joins a transaction that the caller has begun. */
export interface JoiningCall {
  /** For error messages: the function that got the transaction, and what it does in it. */
  readonly caller: string
  readonly operation: string
  /** A text that is different for every call. */
  readonly mark: string
  /** Returns an expression for one text, without `?`, `$` and `:`. It may throw. */
  readonly call: () => string
}

const NO_TRANSACTION = 'no transaction'

/**
 * Sets a marker that lasts until the end of the transaction. If the next statement does not find
 * it, the two statements had no transaction in common: `tx` is a pool, or a connection without a
 * BEGIN, and earlier writes of the caller are committed already. No other check is certain: a
 * transaction that has not written has no id yet, and with the extended protocol the time of a
 * single statement differs from the time of its transaction.
 */
export async function joinTransaction(tx: unknown, joining: JoiningCall): Promise<string> {
  const { caller, operation } = joining
  const run = foreignTransaction(tx, caller)
  const { mark, call } = toLiterals(joining)
  const set = `SELECT pg_catalog.set_config('${JOINED}', ${mark}, true) AS answer`
  await send(run, operation, set)
  return sendIf(run, { setting: JOINED, value: mark, call }, joining)
}

/** Joins a transaction that the store has begun, and whose `setting` it has set then. */
export async function joinOwnTransaction(
  tx: unknown,
  setting: string,
  joining: JoiningCall,
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
 * CASE evaluates the call only if the setting is there. The answer is one row with one text column,
 * so that every tool passes it on unchanged.
 */
async function sendIf(
  run: RunSql,
  { setting, value, call }: Condition,
  { caller, operation }: JoiningCall,
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
      `call ${caller}, and commit. Earlier writes on this connection are committed already`,
  )
}

/** A value that cannot be sent fails as a rejected call. */
function toLiterals({ operation, mark, call }: JoiningCall): { mark: string; call: string } {
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
 * PostgreSQL has aborted the transaction in any case. A conflict is passed on unchanged, so that
 * code that repeats transactions after a conflict recognizes it.
 */
function toFailure(error: unknown, operation: string, sql: string): unknown {
  if (error instanceof InvalidOptionsError) return error
  if (causesOf(error).some(isConflict)) return error
  return storeFailed(operation, driverErrorOf(error, sql))
}
