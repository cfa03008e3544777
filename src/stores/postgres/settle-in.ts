import { InvalidOptionsError, type StoreFailedError } from '../../core/errors.ts'
import {
  answerOf,
  causesOf,
  driverErrorOf,
  foreignTransaction,
  type RunSql,
} from '../../core/foreign-transaction.ts'
import type { RecordState } from '../../core/record.ts'
import type { Completion, Lease, SettleOutcome } from '../../core/store.ts'
import { ValueFault } from './array-literal.ts'
import type { Calls } from './calls.ts'
import { JOINED } from './function-parts.ts'
import { isConflict, storeFailed } from './failures.ts'

/**
 * Completes a key in a transaction that the caller has begun. The outcome is `settled` only where
 * this very call has written: of two transactions of one lease, the second must be rolled back,
 * also where the first has committed and its caller was not told.
 */
export async function settleIn(
  calls: Calls,
  tx: unknown,
  lease: Lease,
  completion: Completion,
): Promise<SettleOutcome> {
  const run = foreignTransaction(tx)
  const token = tokenLiteral(lease)
  const settle = calls
    .textOf(SETTLE_IN)
    .replace('{token}', () => token)
    .replace('{values}', () => settleLiterals(calls.nowMs, lease, completion))
  await send(
    run,
    MARK.replace('{token}', () => token),
  )
  return toOutcome(await send(run, settle))
}

/**
 * A setting that lasts until the end of the transaction. Where the next statement finds it gone,
 * the two had no transaction in common: it was a pool, or a connection without a BEGIN, and what
 * the caller wrote before is committed already. Nothing else tells the two apart for certain: a
 * transaction that has not written has no id yet, and with the extended protocol the time of a
 * lone statement differs from the time of its transaction.
 */
const MARK = `SELECT pg_catalog.set_config('${JOINED}', {token}, true) AS answer`

/**
 * CASE does not call the function unless it has to. One row and one column, as text, so that every
 * tool passes it on as it is; CAST and no `::`, because some take a colon for a placeholder.
 */
const SETTLE_IN = `SELECT CASE
  WHEN pg_catalog.current_setting('${JOINED}', true) = {token} THEN coalesce((
    SELECT CAST(pg_catalog.json_build_object('done', s.out_done, 'own', s.out_own,
      'state', s.out_state, 'expiresAtMs', s.out_expires_at_ms) AS text)
    FROM "{schema}"."{table}_settle"({values}) AS s), 'absent')
  ELSE 'no transaction' END AS answer`

/** In the order of the parameters of the function. */
function settleLiterals(nowMs: number | null, lease: Lease, completion: Completion): string {
  const { identity, attempt } = lease
  const none = (type: string) => `ARRAY[CAST(NULL AS ${type})]`
  return [
    `CAST(${nowMs === null ? 'NULL' : number(nowMs)} AS float8)`,
    `ARRAY[${bytes(identity)}]`,
    `ARRAY[${tokenLiteral(lease)}]`,
    `ARRAY[CAST(${number(attempt)} AS int)]`,
    `ARRAY[${text('complete')}]`,
    `ARRAY[${bytes(hexOf(completion.result))}]`,
    none('text'),
    none('text'),
    `ARRAY[CAST(${number(completion.retentionMs)} AS float8)]`,
    none('float8'),
    none('float8'),
  ].join(', ')
}

function tokenLiteral({ token }: Lease): string {
  if (!token.isWellFormed()) throw fault('a token contains half a surrogate pair')
  return text(token)
}

/** Every text as hexadecimal: nothing in it can end the literal, or look like a placeholder. */
function text(value: string): string {
  return `pg_catalog.convert_from(${bytes(Buffer.from(value).toString('hex'))}, 'UTF8')`
}

function bytes(hex: string): string {
  if (!/^[0-9a-f]*$/i.test(hex)) throw fault('an identity is not hexadecimal')
  return `pg_catalog.decode('${hex}', 'hex')`
}

function number(value: number): string {
  if (!Number.isFinite(value)) throw fault('a number is not finite')
  return String(value)
}

function hexOf(value: unknown): string {
  if (!(value instanceof Uint8Array)) throw fault('a result is not a Uint8Array')
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('hex')
}

const OPERATION = 'complete in a transaction'

function fault(message: string): StoreFailedError {
  return storeFailed(OPERATION, new ValueFault(message))
}

async function send(run: RunSql, sql: string): Promise<string> {
  try {
    return answerOf(await run(sql))
  } catch (error) {
    throw toFailure(error, sql)
  }
}

/**
 * PostgreSQL has aborted the transaction in any case. A conflict is left as it is: whoever repeats
 * transactions for it must recognise it.
 */
function toFailure(error: unknown, sql: string): unknown {
  if (error instanceof InvalidOptionsError) return error
  if (causesOf(error).some(isConflict)) return error
  return storeFailed(OPERATION, driverErrorOf(error, sql))
}

interface Settled {
  readonly done: boolean
  readonly own: boolean
  readonly state: RecordState
  readonly expiresAtMs: number
}

function toOutcome(answer: string): SettleOutcome {
  if (answer === 'absent') return { kind: 'fenced', own: false, state: 'absent' }
  if (answer === 'no transaction') {
    throw new InvalidOptionsError(
      'completeIn was given a connection on which no transaction is open: begin one, write, ' +
        'complete the key, and commit. What was written on it before is committed already',
    )
  }
  const { done, own, state, expiresAtMs } = JSON.parse(answer) as Settled
  if (done) return { kind: 'settled', expiresAt: new Date(expiresAtMs) }
  if (own && state === 'in_progress') {
    throw storeFailed(OPERATION, new Error('the record changed while it was settled'))
  }
  return { kind: 'fenced', own, state }
}
