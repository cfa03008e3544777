import { sleep, systemClock, type Clock } from '../../core/clock.ts'
import type {
  ClaimRequest,
  HistoryQuery,
  ReapRequest,
  Renewal,
  Settlement,
  Verdict,
} from '../../core/store.ts'
import {
  bytesArray,
  bytesValue,
  hexArray,
  hexValue,
  numberArray,
  sharedNumbers,
  sharedTexts,
  textArray,
  textValue,
} from './array-literal.ts'
import type { Driver, Row, Value } from './client.ts'
import { isConflict, isWrongIsolation, storeFailed } from './failures.ts'
import { forTable, type TableName } from './sql.ts'

/** A deadlock or a serialisation failure is over when it is reported. */
const TRIES_MAX = 5
const BACKOFF_MS_MAX = 20

/** Sends calls, each as a transaction of its own. Repeats those that may be repeated. */
export class Calls {
  readonly #driver: Driver
  readonly #name: TableName
  readonly #clock: Clock | undefined
  readonly #texts = new Map<string, string>()
  /** The default isolation of the connections is another one. Known once a call was refused. */
  #needsTransaction = false
  #isClosed = false

  constructor(driver: Driver, { name, clock }: { name: TableName; clock: Clock | undefined }) {
    this.#driver = driver
    this.#name = name
    this.#clock = clock
  }

  /** Null in production: the function then asks the clock that all nodes share. */
  get nowMs(): number | null {
    return this.#clock?.nowMs() ?? null
  }

  close(): void {
    this.#isClosed = true
  }

  checkOpen(operation: string): void {
    if (this.#isClosed) throw storeFailed(operation, new Error('the store is closed'))
  }

  textOf(sql: string): string {
    let text = this.#texts.get(sql)
    if (text === undefined) this.#texts.set(sql, (text = forTable(this.#name, sql)))
    return text
  }

  /** `values` is a function, so that what cannot be sent fails as a call that was refused. */
  async send(
    operation: string,
    sql: string,
    values: () => Value[],
    signal?: AbortSignal,
  ): Promise<readonly Row[]> {
    this.checkOpen(operation)
    for (let tries = 1; ; tries++) {
      const isPlain = !this.#needsTransaction
      try {
        return await this.#sendOnce(this.textOf(sql), values(), signal)
      } catch (error) {
        // Statements of the caller's could get into a transaction on a connection that it shares.
        const mayTransact = isPlain && this.#driver.isShared !== true
        if (isWrongIsolation(error) && mayTransact) this.#needsTransaction = true
        else if (!isConflict(error) || tries === TRIES_MAX) throw storeFailed(operation, error)
      }
      await sleep(systemClock, Math.random() * BACKOFF_MS_MAX, signal)
    }
  }

  #sendOnce(
    text: string,
    values: Value[],
    signal: AbortSignal | undefined,
  ): Promise<readonly Row[]> {
    if (!this.#needsTransaction) return this.#driver.query(text, values, signal)
    return this.#driver.transact((session) => session.query(text, values), undefined, signal)
  }
}

export function claimValues(
  nowMs: number | null,
  history: boolean,
  requests: readonly ClaimRequest[],
): Value[] {
  return [
    nowMs,
    `${history}`,
    sharedTexts(requests.map((one) => one.mode)),
    hexArray(requests.map((one) => one.identity)),
    textArray(requests.map((one) => one.recordId)),
    sharedTexts(requests.map((one) => one.tenant)),
    sharedTexts(requests.map((one) => one.operation)),
    textArray(requests.map((one) => one.key)),
    textArray(requests.map((one) => one.fingerprint)),
    textArray(requests.map((one) => one.token)),
    sharedNumbers(requests.map((one) => one.leaseMs)),
    sharedNumbers(requests.map((one) => one.retentionMs)),
    sharedTexts(requests.map((one) => one.onLapse)),
    sharedNumbers(requests.map((one) => one.maxAttempts)),
    sharedTexts(requests.map((one) => one.afterExpiry)),
  ]
}

/** In the order of `claimValues`, each by itself. */
export function claimOneValues(
  nowMs: number | null,
  history: boolean,
  request: ClaimRequest,
): Value[] {
  return [
    nowMs,
    `${history}`,
    textValue(request.mode),
    hexValue(request.identity),
    textValue(request.recordId),
    textValue(request.tenant),
    textValue(request.operation),
    textValue(request.key),
    textValue(request.fingerprint),
    textValue(request.token),
    request.leaseMs,
    request.retentionMs,
    textValue(request.onLapse),
    request.maxAttempts,
    textValue(request.afterExpiry),
  ]
}

export function settleValues(nowMs: number | null, settlements: readonly Settlement[]): Value[] {
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

/** In the order of `settleValues`, each by itself. */
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

export function reapValues(
  nowMs: number | null,
  history: boolean,
  { limit, abandoned }: ReapRequest,
): Value[] {
  const { result, retentionMs } = abandoned ?? {}
  return [nowMs, limit, `${history}`, bytesValue(result), retentionMs ?? null]
}

export function historyValues({ ref, limit }: HistoryQuery): Value[] {
  const { identity, recordId } = ref
  const hex = identity === undefined ? null : hexValue(identity)
  return [hex, isUuid(recordId) ? recordId : null, limit]
}

export function renewValues(nowMs: number | null, renewals: readonly Renewal[]): Value[] {
  return [
    nowMs,
    hexArray(renewals.map((one) => one.identity)),
    textArray(renewals.map((one) => one.token)),
    numberArray(renewals.map((one) => one.attempt)),
    numberArray(renewals.map((one) => one.leaseMs)),
  ]
}

export function resolveValues(nowMs: number | null, verdicts: readonly Verdict[]): Value[] {
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

/** Another text can be the id of no record, and would be an error in the database. */
export function isUuid(text: string | undefined): text is string {
  return text !== undefined && /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text)
}
