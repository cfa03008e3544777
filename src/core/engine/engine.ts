import { DAY_MS, HOUR_MS, MINUTE_MS } from '../time/durations.ts'
import { resolveBreakerOptions } from '../health/breaker-options.ts'
import { claimEvents } from './claim-events.ts'
import { isBusy, toLookUp, type Claim } from './claim.ts'
import { resolveEncryption, type Encryption } from '../encryption.ts'
import { systemClock, type Clock } from '../time/clock.ts'
import type {
  CloseReport,
  Engine,
  EngineOptions,
  ReapOptions,
  ResolveResult,
  ResolveTarget,
  ResolveVerdict,
  RunRequest,
} from './engine-contract.ts'
import {
  EngineClosedError,
  InvalidOptionsError,
  OperationChangedError,
  StoreFailedError,
} from '../errors.ts'
import { eventSink, UnheardEvents } from './event-sink.ts'
import type { EventListener } from '../events.ts'
import { Execution } from '../attempt/execution.ts'
import { ExecutionRequest, type Claimed, type ExecutionParts } from '../attempt/execution-parts.ts'
import type { RunOutcome } from '../attempt/run-outcome.ts'
import type { Work } from '../attempt/run-context.ts'
import {
  checkIdentity,
  identityOf,
  idSeedOf,
  newRecordId,
  newToken,
  type Scope,
} from '../record/identity.ts'
import { LostClaims } from './lost-claim.ts'
import { isReconciled, noteEngine } from './engine-registry.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../options.ts'
import { resolvePolicy, resumePolicyOf, type Policy, type PolicyOptions } from './policy.ts'
import { splitEngineOptions } from './engine-options.ts'
import { prepareEncryption } from './preparation.ts'
import { RECORD_STATES, type RecordState } from '../record/record.ts'
import { resolveHashKeys, type StoredKeys } from '../record/stored-keys.ts'
import { Settler } from '../attempt/settler.ts'
import { POLL_MS_FIRST, SharedWaits } from './shared-wait.ts'
import { StoreHealth, type EngineHealth } from '../health/store-health.ts'
import { limitsFor } from '../store/store-limits.ts'
import { StorePort, mayHaveWritten } from '../store/store-port.ts'
import type { ClaimOutcome, ClaimRequest, RecordView, Store } from '../store/store.ts'
import { Upkeep } from './upkeep.ts'
import { checkVerdict, toRef } from '../record/verdict.ts'
import { WaitingRoom } from './waiting-room.ts'

/**
 * Creates an engine on a store. Create one for each store and process, pass it to every guard, and
 * close it at shutdown. Throws `InvalidOptionsError` on wrong, unknown or contradictory options.
 */
export function createEngine(options: EngineOptions): Engine {
  const engine = new OnceEngine(options)
  noteEngine(options.store, engine)
  return engine
}

const GRACE_MS = 10_000
const LIST_LIMIT = 100
const LIST_LIMIT_MAX = 10_000

class OnceEngine implements Engine {
  readonly store: Store
  readonly clock: Clock
  readonly #policy: Policy
  readonly emit: EventListener
  readonly encryption: Encryption | undefined
  readonly requireEncryption: boolean
  readonly #keys: StoredKeys
  readonly #hasListener: boolean
  readonly #health: StoreHealth
  readonly #port: StorePort
  readonly #settler: Settler
  readonly #lost: LostClaims
  readonly #room: WaitingRoom
  readonly #waits: SharedWaits
  readonly #upkeep: Upkeep
  /** The services that every attempt uses. */
  readonly #parts: ExecutionParts
  #running = 0
  /** Work that still runs after its caller was answered. */
  #outliving = 0
  #closing = false
  #onDrained: () => void = () => undefined

  constructor(options: EngineOptions) {
    const { parts, policy } = splitEngineOptions(options)
    const { store, onEvent, clock, storeTimeoutMs, breaker, sweepEveryMs, reapEveryMs } = parts
    this.store = store
    this.clock = clock ?? systemClock
    this.#policy = resolvePolicy(policy, undefined, 'createEngine')
    const { encryption, requireEncryption } = resolveEncryption('createEngine', parts)
    this.encryption = encryption
    this.requireEncryption = requireEncryption
    this.#keys = resolveHashKeys('createEngine.hashKeys', parts.hashKeys)
    this.#hasListener = onEvent !== undefined
    const unheard = new UnheardEvents({
      clock: this.clock,
      answeredAt: () => this.#health.answeredAt,
      isReconciled: () => isReconciled(this),
    })
    this.emit = eventSink(onEvent, unheard)
    const emit: EventListener = (event) => this.emit(event)
    const number = (name: string, value: unknown, fallback: number, min: number): number =>
      wholeNumber(`createEngine.${name}`, value, { fallback, min, max: 7 * DAY_MS })
    const timeoutMs = number('storeTimeoutMs', storeTimeoutMs, 5_000, 1)
    const limits = limitsFor(store, timeoutMs)
    this.#health = new StoreHealth({
      store,
      clock: this.clock,
      storeTimeoutMs: timeoutMs,
      lanes: limits.lanes,
      breaker: resolveBreakerOptions(breaker, timeoutMs),
      emit,
    })
    this.#port = new StorePort(store, { clock: this.clock, limits, emit, health: this.#health })
    this.#settler = new Settler(this.clock, this.#port)
    this.#lost = new LostClaims(this.clock, this.#port)
    this.#room = new WaitingRoom(this.clock, store)
    this.#waits = new SharedWaits({
      clock: this.clock,
      room: this.#room,
      claim: (request, waiterPolicy) => this.#claim(request, waiterPolicy),
      isClosing: () => this.#closing,
    })
    this.#parts = {
      clock: this.clock,
      store,
      port: this.#port,
      settler: this.#settler,
      emit,
      encryption: this,
      onSettled: (identity) => this.#room.wake(identity),
      onOutlive: (by) => {
        this.#outliving += by
      },
    }
    this.#upkeep = new Upkeep({
      store,
      clock: this.clock,
      emit,
      isPaused: () => this.#health.breaker.isRefusing,
      sweepEveryMs: number('sweepEveryMs', sweepEveryMs, MINUTE_MS, 0),
      reapEveryMs: number('reapEveryMs', reapEveryMs, HOUR_MS, 0),
    })
  }

  async run(request: RunRequest, work: Work): Promise<RunOutcome> {
    if (this.#closing) throw this.#refuseAsClosed(request.scope)
    checkIdentity(request.scope, request.key, request.fingerprint)
    this.#running++
    try {
      const policy = request.policy ?? this.#policy
      const prepared = this.#prepare(request)
      const ready = prepared instanceof Promise ? await prepared : prepared
      const first = await this.#claim(ready, policy)
      const waitMs = typeof policy.whileInProgress === 'object' ? policy.whileInProgress.waitMs : 0
      const claim =
        waitMs > 0 && isBusy(first.outcome) ? await this.#wait(ready, policy, first) : first
      return await this.#answer(request, policy, claim, work)
    } finally {
      this.#running--
      if (this.#running === 0) this.#onDrained()
    }
  }

  async resume(record: RecordView, work: Work, policy: Policy = this.#policy): Promise<RunOutcome> {
    const { tenant, operation, key, fingerprint } = record
    if (this.#closing) throw this.#refuseAsClosed({ tenant, operation })
    const request: RunRequest = { scope: { tenant, operation }, key, fingerprint }
    // The route decides whether its key may be used after the expiry. The caller may not know the
    // route, so the value of the record is kept.
    const { afterExpiry, refuseForMs } = record
    const resumePolicy = { ...resumePolicyOf(policy), afterExpiry, refuseForMs }
    this.#running++
    try {
      const claim = await this.#claimAs(request, resumePolicy, {
        identity: record.identity,
        fingerprint,
        mode: 'take',
      })
      const { outcome } = claim
      if (outcome.kind === 'claimed' && !isOperationOf(outcome, record)) {
        // The key has another record now, or one without an operation: it is not this worker's.
        await this.#releaseUnused(outcome, tenant)
        return { kind: 'expired', recordId: outcome.recordId }
      }
      return await this.#answer(request, resumePolicy, claim, work)
    } finally {
      this.#running--
      if (this.#running === 0) this.#onDrained()
    }
  }

  /** The request to claim for: a look-up if the encryption of its work cannot be prepared. */
  #prepare(request: RunRequest): RunRequest | Promise<RunRequest> {
    const { scope, findOnly, encryption = this.encryption } = request
    if (encryption === undefined || encryption === false || findOnly === true) return request
    const prepared = prepareEncryption(this, encryption, scope)
    if (typeof prepared === 'boolean') return prepared ? request : toLookUp(request)
    return prepared.then((isReady) => {
      if (this.#closing) throw this.#refuseAsClosed(scope)
      return isReady ? request : toLookUp(request)
    })
  }

  #refuseAsClosed({ tenant, operation }: Scope): EngineClosedError {
    this.emit({ kind: 'claim_refused', tenant, operation, reason: 'engine_closed' })
    return new EngineClosedError()
  }

  /** Releases a claim without an effect: nothing has run under it. */
  async #releaseUnused({ lease }: Claimed, tenant: string): Promise<void> {
    const { retentionMs } = this.#policy
    const release = { kind: 'release', lease, proof: 'proven', retentionMs } as const
    await this.#port.settle({ ...release, errorCode: undefined }, tenant)
  }

  /** Refuses plain work, which would repeat from the start what an operation has done in part. */
  async #refusePlainWork(claimed: Claimed, { tenant }: Scope): Promise<never> {
    // If the release fails, the port has reported it, and the lease ends without it.
    await this.#releaseUnused(claimed, tenant).catch(() => undefined)
    throw new OperationChangedError(
      `record ${claimed.recordId} was begun as an operation, but this work is not one: mount the ` +
        'route with .with(operation.route), and keep a worker until its operations have ended',
    )
  }

  get isClosed(): boolean {
    return this.#closing
  }

  policy(options: PolicyOptions): Policy {
    return resolvePolicy(options, this.#policy)
  }

  async resolve(
    target: ResolveTarget & { readonly attempt?: number },
    verdict: ResolveVerdict,
  ): Promise<ResolveResult> {
    checkVerdict(verdict)
    const { retentionMs } = this.#policy
    const { attempt } = target
    const ref = toRef(target)
    const outcome = await this.#port.ask('resolve', async (signal) => {
      const [answer] = await this.store.resolve([{ ref, attempt, verdict, retentionMs }], signal)
      if (answer === undefined) throw new Error('the store returned no answer')
      return answer
    })
    if (outcome.kind !== 'resolved') {
      this.emit({ kind: 'reconcile_failed', reason: outcome.kind })
      return outcome
    }
    const { identity, tenant, operation, recordId } = outcome.record
    const subject = { identity, tenant, operation, recordId }
    this.emit({ kind: 'reconcile_resolved', ...subject, to: verdict.kind })
    this.#room.wake(identity)
    return outcome
  }

  async read(target: ResolveTarget): Promise<RecordView | undefined> {
    const ref = toRef(target)
    return this.#port.ask('read', (signal) => this.store.read(ref, signal))
  }

  async list(query: { state: RecordState; limit?: number }): Promise<RecordView[]> {
    // A filter that is ignored would list the records of every tenant.
    rejectUnknownOptions('list', query, ['state', 'limit'])
    const bounds = { fallback: LIST_LIMIT, min: 1, max: LIST_LIMIT_MAX }
    const limit = wholeNumber('list.limit', query.limit, bounds)
    const { state } = query
    if (!RECORD_STATES.includes(state)) {
      // A misspelt state would match no record, which an operator would take for good news.
      throw new InvalidOptionsError(
        `list.state must be one of ${RECORD_STATES.join(', ')}, got ${describe(state)}`,
      )
    }
    return this.#port.ask('list', (signal) => this.store.list({ state, limit }, signal))
  }

  sweep(): Promise<number> {
    return this.#upkeep.sweepOnce()
  }

  reap(options: ReapOptions = {}): Promise<number> {
    rejectUnknownOptions('reap', options, ['abandoned'])
    return this.#upkeep.reapOnce(options.abandoned)
  }

  async close(options: { graceMs?: number } = {}): Promise<CloseReport> {
    rejectUnknownOptions('close', options, ['graceMs'])
    const bounds = { fallback: GRACE_MS, min: 0, max: DAY_MS }
    const graceMs = wholeNumber('close.graceMs', options.graceMs, bounds)
    this.#closing = true
    this.#upkeep.stop()
    this.#health.breaker.stop()
    this.#room.wakeAll()
    this.#lost.stop()
    await this.#drained(graceMs)
    this.#settler.stop()
    return { abandoned: this.#running + this.#outliving + this.#settler.pending }
  }

  health(): Promise<EngineHealth> {
    return this.#health.report(this.#closing)
  }

  untilStoreAnswers(signal?: AbortSignal): Promise<void> {
    return this.#health.breaker.untilClosed(signal)
  }

  isOwnedBy(record: RecordView, principal: string): boolean {
    return this.#keys.isOwnedBy(record, principal)
  }

  /** Returns a promise only for a claimed key: the other outcomes need none. */
  #answer(
    request: RunRequest,
    policy: Policy,
    claim: Claim,
    work: Work,
  ): RunOutcome | Promise<RunOutcome> {
    const { scope } = request
    const { outcome, identity, sentMs } = claim
    this.#report(scope, claim)
    switch (outcome.kind) {
      case 'claimed':
        if (outcome.recoveryPoint !== undefined && policy.onLapse !== 'resume') {
          return this.#refusePlainWork(outcome, scope)
        }
        return new Execution(
          this.#parts,
          new ExecutionRequest(request, policy, outcome, sentMs),
        ).run(work)
      case 'completed':
        return { ...outcome, kind: 'replayed', identity }
      case 'in_progress':
        return {
          kind: 'in_progress',
          recordId: outcome.recordId,
          retryAfterMs: outcome.leaseLeftMs,
          expiresAt: outcome.expiresAt,
        }
      case 'unknown':
        return { kind: 'unknown', recordId: outcome.recordId, retryAfterMs: outcome.reconcileInMs }
      case 'mismatch':
        return { kind: 'mismatch', recordId: outcome.recordId }
      case 'free':
        return outcome
      case 'pending':
      case 'expired':
        return { kind: outcome.kind, recordId: outcome.recordId }
    }
  }

  #claim(request: RunRequest, policy: Policy): Promise<Claim> {
    const { scope, key, fingerprint } = request
    return this.#claimAs(request, policy, {
      identity: identityOf(scope, key),
      fingerprint,
      mode: request.findOnly === true ? 'find' : 'hold',
    })
  }

  /**
   * Claims the key. If the stored fingerprint was made in an older way and the request is the same,
   * claims again with the stored fingerprint.
   */
  async #claimAs(
    request: RunRequest,
    policy: Policy,
    { identity, fingerprint, mode }: Pick<ClaimRequest, 'identity' | 'fingerprint' | 'mode'>,
  ): Promise<Claim> {
    const { scope, key } = request
    const claimRequest: ClaimRequest = {
      mode,
      identity,
      tenant: scope.tenant,
      operation: scope.operation,
      // A worker has the stored text already, and its claim writes no key.
      key: mode === 'take' ? key : this.#keys.textOf(scope, key, identity),
      fingerprint,
      recordId: newRecordId(this.clock.nowMs()),
      idSeed: policy.idsFrom === 'identity' ? idSeedOf(identity) : undefined,
      token: newToken(),
      leaseMs: policy.leaseMs,
      retentionMs: policy.retentionMs,
      onLapse: policy.onLapse,
      maxLapses: policy.maxLapses,
      afterExpiry: policy.afterExpiry,
      refuseForMs: policy.refuseForMs,
    }
    const sentMs = this.clock.monotonicMs()
    let outcome: ClaimOutcome
    try {
      outcome = await this.#port.claim(claimRequest, request.ignoresBreaker)
      if (outcome.kind === 'claimed') this.#checkInTime(sentMs, policy)
    } catch (error) {
      if (mode !== 'find' && mayHaveWritten(error)) this.#lost.release(claimRequest)
      throw error
    }
    if (outcome.kind === 'mismatch' && fingerprint === request.fingerprint) {
      const stored = outcome.fingerprint
      if (request.recompute?.(stored) === stored) {
        const asStored = { identity, fingerprint: stored, mode }
        return await markKeyInUse(this.#claimAs(request, policy, asStored))
      }
    }
    return { outcome, identity, mode, sentMs }
  }

  /** An answer that took longer than the lease is too late: another holder may have the key. */
  #checkInTime(sentMs: number, { leaseMs }: Policy): void {
    if (this.clock.monotonicMs() - sentMs < leaseMs) return
    const cause = new Error(`the answer arrived after the lease of ${leaseMs} ms had ended`)
    const error = new StoreFailedError({ store: this.store.name, operation: 'claim', cause })
    this.emit({ kind: 'store_error', store: this.store.name, call: 'claim', error })
    throw error
  }

  /** Waits for a result and claims again. Limited in time, and by the places to wait. */
  async #wait(request: RunRequest, policy: Policy, first: Claim): Promise<Claim> {
    const { tenant } = request.scope
    const waitMs = typeof policy.whileInProgress === 'object' ? policy.whileInProgress.waitMs : 0
    if (this.#closing || !this.#room.enter(tenant)) return first
    try {
      const deadlineMs = this.clock.monotonicMs() + waitMs
      return await this.#waits.wait(first, { request, policy, deadlineMs })
    } finally {
      this.#room.leave(tenant)
    }
  }

  #report(scope: Scope, { outcome, identity, mode }: Claim): void {
    // Without a listener, only a record that became `unknown` causes a warning.
    if (!this.#hasListener && outcome.kind !== 'unknown') return
    const { tenant, operation } = scope
    const subject = { identity, tenant, operation, recordId: outcome.recordId }
    for (const event of claimEvents(subject, outcome, mode)) this.emit(event)
  }

  /** Resolves when no work runs and no result waits to be recorded, or after `graceMs`. */
  #drained(graceMs: number): Promise<void> {
    return new Promise((resolve) => {
      const deadlineMs = this.clock.monotonicMs() + graceMs
      let cancel: () => void = () => undefined
      const check = () => {
        cancel()
        const leftMs = deadlineMs - this.clock.monotonicMs()
        const working = this.#running + this.#outliving
        const open = working + this.#settler.pending + this.#lost.pending
        if (leftMs <= 0 || open === 0) return resolve()
        cancel = this.clock.after(Math.min(leftMs, POLL_MS_FIRST), check)
      }
      this.#onDrained = check
      check()
    })
  }
}

/** The first claim has found a record: running the work unprotected would run it twice. */
async function markKeyInUse(claim: Promise<Claim>): Promise<Claim> {
  try {
    return await claim
  } catch (error) {
    if (error instanceof StoreFailedError) error.keyInUse = true
    throw error
  }
}

function isOperationOf({ recordId, recoveryPoint }: Claimed, record: RecordView): boolean {
  return recordId === record.recordId && recoveryPoint !== undefined
}
