import { sleep, systemClock } from '../../core/time/clock.ts'
import { toView } from '../../core/record/decide.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  RecordRef,
  RecordView,
  Renewal,
} from '../../core/store/store.ts'
import { inRounds } from '../kit/rounds.ts'
import { ValueFault } from '../kit/value-fault.ts'
import type { Calls } from './calls.ts'
import {
  AGAIN,
  allNew,
  byIdentity,
  inProgress,
  nothingToTake,
  toClaimOutcome,
  toClaimRow,
  toFindOutcome,
  toRecord,
} from './columns.ts'
import type { Row, Value } from './driver/driver.ts'
import {
  hexArray,
  hexValue,
  isUuid,
  numberArray,
  sharedNumbers,
  sharedTexts,
  textArray,
  textValue,
} from './driver/values.ts'
import { isUniqueViolation, storeFailed } from './failures.ts'
import { CLAIM, CLAIM_ONE, FIND, FIND_BATCH, FIND_BY_RECORD_ID, RENEW } from './sql.ts'

/**
 * How often, and at which interval, a locked row is read again. Most locks end with a commit within
 * milliseconds. Some last longer, so the claim then answers from the version it can read.
 */
const LOCKED_TRIES = 10
const LOCKED_MS = 10

type Signal = AbortSignal | undefined

/** Claims keys, renews their leases and reads single records. */
export class Claims {
  readonly #calls: Calls
  readonly #hasHistory: boolean

  constructor(calls: Calls, hasHistory: boolean) {
    this.#calls = calls
    this.#hasHistory = hasHistory
  }

  claim(requests: readonly ClaimRequest[], signal: Signal): Promise<ClaimOutcome[]> {
    return inRounds(requests, identityOf, (round) => {
      const hasLookUp = round.some(({ mode }) => mode === 'find')
      return hasLookUp ? this.#claimAndFind(round, signal) : this.#claim(round, signal)
    })
  }

  renew(renewals: readonly Renewal[], signal: Signal): Promise<boolean[]> {
    return inRounds(renewals, identityOf, (round) => this.#renew(round, signal))
  }

  async read({ identity, recordId }: RecordRef, signal: Signal): Promise<RecordView | undefined> {
    if (identity === undefined && !isUuid(recordId)) return undefined
    const [row] =
      identity === undefined
        ? await this.#calls.send('read', FIND_BY_RECORD_ID, () => [recordId], signal)
        : await this.#calls.send('read', FIND, () => [identity], signal)
    return row && toView(toRecord(row))
  }

  /** Reads the keys of look-ups while the others are claimed. */
  async #claimAndFind(requests: readonly ClaimRequest[], signal: Signal): Promise<ClaimOutcome[]> {
    const lookUps = requests.filter(({ mode }) => mode === 'find')
    const others = requests.filter(({ mode }) => mode !== 'find')
    const identities = identitiesOf(lookUps)
    // Waits for both: a call must not fail while a part of it may still write.
    const [claimed, found] = await Promise.allSettled([
      others.length === 0 ? [] : this.#claim(others, signal),
      this.#calls.send('claim', FIND_BATCH, () => [this.#calls.nowMs, identities], signal),
    ])
    if (claimed.status === 'rejected') throw claimed.reason
    if (found.status === 'rejected') throw found.reason
    const rowOf = byIdentity(found.value)
    const outcomes = claimed.value.values()
    return requests.map((request) =>
      request.mode === 'find'
        ? toFindOutcome(rowOf.get(request.identity), request)
        : outcomes.next().value!,
    )
  }

  async #claim(requests: readonly ClaimRequest[], signal: Signal): Promise<ClaimOutcome[]> {
    const outcomes = await this.#claimOnce(requests, false, signal)
    for (let tries = 2; outcomes.includes(AGAIN); tries++) {
      if (tries > LOCKED_TRIES) {
        const cause = new Error(
          `the record changed during each of ${LOCKED_TRIES} attempts to claim it`,
        )
        throw storeFailed('claim', cause)
      }
      await sleep(systemClock, LOCKED_MS, signal)
      const left = [...outcomes.keys()].filter((index) => outcomes[index] === AGAIN)
      const repeated = left.map((index) => requests[index]!)
      const answers = await this.#claimOnce(repeated, tries === LOCKED_TRIES, signal)
      for (const [n, index] of left.entries()) outcomes[index] = answers[n]!
    }
    return outcomes as ClaimOutcome[]
  }

  async #claimOnce(
    requests: readonly ClaimRequest[],
    isLast: boolean,
    signal: Signal,
  ): Promise<(ClaimOutcome | typeof AGAIN)[]> {
    const rows = await this.#sendClaims(requests, signal)
    const fresh = allNew(rows, requests)
    if (fresh !== undefined) return fresh
    const rowOf = byIdentity(rows)
    return requests.map((request) => {
      const row = rowOf.get(request.identity)
      if (row === undefined) return withoutRow(request)
      const outcome = toClaimOutcome(row, request)
      return outcome === AGAIN && isLast ? inProgress(row) : outcome
    })
  }

  async #sendClaims(requests: readonly ClaimRequest[], signal: Signal): Promise<readonly Row[]> {
    const [first] = requests
    if (requests.length !== 1 || first === undefined) return this.#sendClaimBatch(requests, signal)
    try {
      const values = () => claimOneValues(this.#calls.nowMs, this.#hasHistory, first)
      const [answer] = await this.#calls.send('claim', CLAIM_ONE, values, signal)
      const row = toClaimRow(first.identity, answer![0])
      return row === undefined ? [] : [row]
    } catch (error) {
      // A repetition of this claim was faster and has inserted the same record id.
      if (isUniqueViolation(error)) return this.#sendClaimBatch(requests, signal)
      throw error
    }
  }

  #sendClaimBatch(requests: readonly ClaimRequest[], signal: Signal): Promise<readonly Row[]> {
    const values = () => claimValues(this.#calls.nowMs, this.#hasHistory, requests)
    return this.#calls.send('claim', CLAIM, values, signal)
  }

  /**
   * Fails if a row stays locked. It cannot be renewed, and `true` would make the holder rely on a
   * lease that the database does not have. The engine repeats the call; renewing the other leases
   * twice does no harm.
   */
  async #renew(renewals: readonly Renewal[], signal: Signal): Promise<boolean[]> {
    const answers = new Map<string, unknown>()
    let left = renewals
    for (let tries = 1; left.length > 0 && tries <= LOCKED_TRIES; tries++) {
      if (tries > 1) await sleep(systemClock, LOCKED_MS, signal)
      const sent = left
      const values = () => renewValues(this.#calls.nowMs, sent)
      const rowOf = byIdentity(await this.#calls.send('renew', RENEW, values, signal))
      for (const { identity } of sent) answers.set(identity, rowOf.get(identity)?.[1])
      left = sent.filter(({ identity }) => {
        const how = answers.get(identity)
        return how === 'locked' || how === 'locked_lapsed'
      })
    }
    if (left.length > 0) {
      const cause = new Error(`${left.length} of ${renewals.length} records are locked`)
      throw storeFailed('renew', cause)
    }
    return renewals.map(({ identity }) => answers.get(identity) === 'renewed')
  }
}

/** The key had no record to take, or the record was reaped between two statements. */
function withoutRow(request: ClaimRequest): ClaimOutcome | typeof AGAIN {
  return request.mode === 'take' ? nothingToTake(request) : AGAIN
}

/**
 * A call that is rejected must have written nothing, so what the database would reject in a look-up
 * is rejected before the claims beside it are sent.
 */
function identitiesOf(lookUps: readonly ClaimRequest[]): string {
  const identities = lookUps.map(identityOf)
  if (identities.every((identity) => /^[0-9a-f]{32}$/.test(identity))) return hexArray(identities)
  throw storeFailed('claim', new ValueFault('an identity is not 32 hexadecimal characters'))
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}

function claimValues(
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
    sharedNumbers(requests.map((one) => one.maxLapses)),
    sharedTexts(requests.map((one) => one.afterExpiry)),
    hexArray(requests.map((one) => one.idSeed ?? null)),
    sharedNumbers(requests.map((one) => one.refuseForMs ?? null)),
  ]
}

/** The values of `claimValues`, in the same order, for one request. */
function claimOneValues(nowMs: number | null, history: boolean, request: ClaimRequest): Value[] {
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
    request.maxLapses,
    textValue(request.afterExpiry),
    request.idSeed === undefined ? null : hexValue(request.idSeed),
    request.refuseForMs ?? null,
  ]
}

function renewValues(nowMs: number | null, renewals: readonly Renewal[]): Value[] {
  return [
    nowMs,
    hexArray(renewals.map((one) => one.identity)),
    textArray(renewals.map((one) => one.token)),
    numberArray(renewals.map((one) => one.attempt)),
    numberArray(renewals.map((one) => one.leaseMs)),
  ]
}
