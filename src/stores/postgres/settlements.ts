import { toView } from '../../core/record/decide.ts'
import type {
  Completion,
  Lease,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Verdict,
} from '../../core/store/store.ts'
import { inRounds } from '../kit/rounds.ts'
import { joinTransaction } from './caller-transaction.ts'
import type { Calls } from './calls.ts'
import {
  AGAIN,
  allSettled,
  byIdentity,
  toRecord,
  toRow,
  toSettleOutcome,
  type SettleRow,
} from './columns.ts'
import type { Row, Value } from './driver/driver.ts'
import {
  bytesArray,
  bytesLiteral,
  bytesValue,
  hexArray,
  hexLiteral,
  hexValue,
  isUuid,
  numberArray,
  numberLiteral,
  sharedNumbers,
  sharedTexts,
  textArray,
  textLiteral,
  textValue,
} from './driver/values.ts'
import { storeFailed } from './failures.ts'
import { RESOLVE, SETTLE, SETTLE_IN, SETTLE_ONE } from './sql.ts'

type Signal = AbortSignal | undefined

/** Ends leases: complete, release and doubt, and an operator's verdict on an unknown record. */
export class Settlements {
  readonly #calls: Calls

  constructor(calls: Calls) {
    this.#calls = calls
  }

  settle(settlements: readonly Settlement[], signal: Signal): Promise<SettleOutcome[]> {
    return inRounds(
      settlements,
      ({ lease }) => lease.identity,
      (round) => this.#settle(round, signal),
    )
  }

  resolve(verdicts: readonly Verdict[], signal: Signal): Promise<ResolveOutcome[]> {
    return inRounds(
      verdicts,
      ({ ref }) => ref.identity ?? ref.recordId,
      (round) => this.#resolve(round, signal),
    )
  }

  /**
   * Completes a key in a transaction that the caller has begun. The outcome is `settled` only if
   * this call wrote the row: of two transactions of one lease, the second must be rolled back, even
   * if the first has committed and its caller got no answer.
   */
  async settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome> {
    const answer = await joinTransaction(tx, {
      caller: 'completeIn',
      operation: SETTLE_IN_OPERATION,
      mark: lease.token,
      call: () => {
        const values = settleLiterals(this.#calls.nowMs, lease, completion)
        return this.#calls.textOf(SETTLE_IN).replace('{values}', () => values)
      },
    })
    return toSettleInOutcome(lease, answer)
  }

  async #settle(settlements: readonly Settlement[], signal: Signal): Promise<SettleOutcome[]> {
    const rows = await this.#sendSettlements(settlements, signal)
    const settled = allSettled(rows, settlements)
    if (settled !== undefined) return settled
    const rowOf = byIdentity(rows)
    const outcomes = settlements.map((settlement) =>
      toSettleOutcome(rowOf.get(settlement.lease.identity), settlement),
    )
    if (!outcomes.includes(AGAIN)) return outcomes as SettleOutcome[]
    return Promise.all(
      outcomes.map(async (outcome, index) => {
        if (outcome !== AGAIN) return outcome
        const [again] = await this.#settle([settlements[index]!], signal)
        return again!
      }),
    )
  }

  async #sendSettlements(
    settlements: readonly Settlement[],
    signal: Signal,
  ): Promise<readonly Row[]> {
    const [first] = settlements
    if (settlements.length !== 1 || first === undefined) {
      const values = () => settleValues(this.#calls.nowMs, settlements)
      return this.#calls.send('settle', SETTLE, values, signal)
    }
    const values = () => settleOneValues(this.#calls.nowMs, first)
    const [answer] = await this.#calls.send('settle', SETTLE_ONE, values, signal)
    const row = toRow(first.lease.identity, answer![0])
    return row === undefined ? [] : [row]
  }

  async #resolve(verdicts: readonly Verdict[], signal: Signal): Promise<ResolveOutcome[]> {
    const values = () => resolveValues(this.#calls.nowMs, verdicts)
    const rows = await this.#calls.send('resolve', RESOLVE, values, signal)
    const byNumber = new Map<unknown, Row>()
    for (const row of rows) if (!byNumber.has(row[0])) byNumber.set(row[0], row)
    return verdicts.map((_, number) => {
      const row = byNumber.get(number)
      if (row === undefined) return { kind: 'not_found' }
      const [, done, ...columns] = row
      const record = toRecord(columns)
      if (done === true) return { kind: 'resolved', record: toView(record) }
      const { state, attempt } = record
      return state === 'unknown'
        ? { kind: 'other_attempt', attempt }
        : { kind: 'not_unknown', state }
    })
  }
}

const SETTLE_IN_OPERATION = 'complete in a transaction'

function toSettleInOutcome({ identity }: Lease, answer: string): SettleOutcome {
  if (answer === 'absent') return { kind: 'fenced', own: false, state: 'absent' }
  const [, done, own, state, expiresAtMs] = toRow(identity, answer) as SettleRow
  if (done) return { kind: 'settled', expiresAt: new Date(expiresAtMs) }
  if (own && state === 'in_progress') {
    throw storeFailed(SETTLE_IN_OPERATION, new Error('the record changed while it was settled'))
  }
  return { kind: 'fenced', own, state }
}

function settleValues(nowMs: number | null, settlements: readonly Settlement[]): Value[] {
  return [
    nowMs,
    hexArray(settlements.map(({ lease }) => lease.identity)),
    textArray(settlements.map(({ lease }) => lease.token)),
    sharedNumbers(settlements.map(({ lease }) => lease.attempt)),
    sharedTexts(settlements.map((one) => one.kind)),
    bytesArray(settlements.map((one) => (one.kind === 'complete' ? one.result : null))),
    sharedTexts(settlements.map((one) => (one.kind === 'release' ? one.proof : null))),
    sharedTexts(settlements.map((one) => (one.kind === 'complete' ? null : one.errorCode))),
    sharedNumbers(settlements.map((one) => (one.kind === 'doubt' ? null : one.retentionMs))),
    sharedNumbers(settlements.map((one) => (one.kind === 'doubt' ? one.reconcileAfterMs : null))),
    sharedNumbers(
      settlements.map((one) => (one.kind === 'release' ? (one.resumeAfterMs ?? 0) : 0)),
    ),
  ]
}

/** The values of `settleValues`, in the same order, for one settlement. */
export function settleOneValues(nowMs: number | null, one: Settlement): Value[] {
  const { identity, token, attempt } = one.lease
  return [
    nowMs,
    hexValue(identity),
    textValue(token),
    attempt,
    one.kind,
    one.kind === 'complete' ? bytesValue(one.result) : null,
    one.kind === 'release' ? one.proof : null,
    one.kind === 'complete' ? null : textValue(one.errorCode),
    one.kind === 'doubt' ? null : one.retentionMs,
    one.kind === 'doubt' ? one.reconcileAfterMs : null,
    one.kind === 'release' ? (one.resumeAfterMs ?? 0) : 0,
  ]
}

/** The values of `settleOneValues` for a completion, as literals. */
function settleLiterals(nowMs: number | null, lease: Lease, completion: Completion): string {
  const { identity, token, attempt } = lease
  const none = (type: string) => `CAST(NULL AS ${type})`
  return [
    numberLiteral(nowMs),
    hexLiteral(identity),
    textLiteral(token),
    numberLiteral(attempt, 'int'),
    textLiteral('complete'),
    bytesLiteral(completion.result),
    none('text'),
    none('text'),
    numberLiteral(completion.retentionMs),
    none('float8'),
    none('float8'),
  ].join(', ')
}

function resolveValues(nowMs: number | null, verdicts: readonly Verdict[]): Value[] {
  return [
    nowMs,
    numberArray(verdicts.map((_, number) => number)),
    hexArray(verdicts.map(({ ref }) => ref.identity ?? null)),
    textArray(verdicts.map(({ ref }) => (isUuid(ref.recordId) ? ref.recordId : null))),
    numberArray(verdicts.map(({ attempt }) => attempt ?? null)),
    textArray(verdicts.map(({ verdict }) => verdict.kind)),
    bytesArray(
      verdicts.map(({ verdict }) => (verdict.kind === 'completed' ? verdict.result : null)),
    ),
    numberArray(verdicts.map((one) => one.retentionMs)),
  ]
}
