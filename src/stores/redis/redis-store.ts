import { systemClock, type Clock } from '../../core/clock.ts'
import { toSwept, toView } from '../../core/decide.ts'
import { LEASE_AHEAD_MS } from '../../core/shorten-lease.ts'
import { InvalidOptionsError, isRejected } from '../../core/errors.ts'
import { checkRedisClient } from '../../core/redis-connections.ts'
import type { RecordState } from '../../core/record.ts'
import { ABSENT_LEASE } from '../../core/store-probe.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Lease,
  ListQuery,
  ReapReport,
  ReapRequest,
  RecordRef,
  RecordView,
  Renewal,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Store,
  SweptRecord,
  Verdict,
} from '../../core/store.ts'
import { warnOnce } from '../../core/warn.ts'
import { toClaimOutcome, toRecord, toResolveOutcome, toSettleOutcome } from './answers.ts'
import { Buckets } from './buckets.ts'
import { Calls, type Batch } from './calls.ts'
import { checkServer, type RedisCheck } from './check.ts'
import type { Driver } from './client.ts'
import { driverOf } from './driver.ts'
import { storeFailed } from './failures.ts'
import {
  resolveRedisStoreOptions,
  type RedisStoreOptions,
  type ResolvedRedisStoreOptions,
} from './options.ts'
import { RecordIndex } from './record-index.ts'
import { NotReplicated, Replication } from './replication.ts'
import {
  CANDIDATE_PACKING,
  CLAIM_PACKING,
  RENEW_PACKING,
  RESOLVE_PACKING,
  SETTLE_PACKING,
  type Candidate,
  type FoundVerdict,
} from './requests.ts'
import { CLAIM, RENEW, SETTLE } from './scripts.ts'
import { untilAborted } from './until-aborted.ts'
import { READ, REAP, REAP_CODES, RESOLVE, SHORTEN, SWEEP } from './upkeep-scripts.ts'

/**
 * Half of what a busy process has under way: while the server works on one batch, the process
 * prepares the next. One batch of all of them would have the two wait for each other.
 */
const BATCH_ROWS_MAX = 32

/** How long a refusal stands before the server is looked at again. */
const RECHECK_MS = 5_000

/** How many of the leases that end last a sweep looks at: it must not read all that are held. */
const HELD_ROWS = 1_024

/** A store in Redis: fast, and as durable as the server is set up to be. */
export interface RedisStore extends Store {
  /**
   * Looks at how the server is set up and says what it does not guarantee. Runs by itself before
   * the first claim; its findings are then warned of once.
   */
  check(): Promise<RedisCheck>

  now(): Promise<Date>

  /** Closes the connection that `waitReplicas` has opened. The client stays open. */
  close(): Promise<void>
}

/**
 * Keeps records in Redis, or in a Redis Cluster. What the server forgets, by eviction, by a restart
 * or by a failover, is forgotten here as well: see `check()`.
 */
export function redisStore(options: RedisStoreOptions): RedisStore {
  const resolved = resolveRedisStoreOptions(options)
  const driver = driverOf(resolved.client)
  checkRedisClient(resolved.client, 'redisStore')
  return new ScriptedStore(resolved, driver)
}

class ScriptedStore implements RedisStore {
  readonly name = 'redis'
  readonly batching = { rowsMax: BATCH_ROWS_MAX, flushesMax: 4 } as const
  readonly #driver: Driver
  readonly #clock: Clock | undefined
  readonly #buckets: Buckets
  readonly #calls: Calls
  readonly #index: RecordIndex
  readonly #replication: Replication | undefined
  readonly #allowEviction: boolean
  #checked: Promise<void> | undefined
  #refusedUntilMs = 0
  #isClosed = false

  constructor(options: ResolvedRedisStoreOptions, driver: Driver) {
    this.#driver = driver
    this.#clock = options.clock
    this.#allowEviction = options.allowEviction
    this.#buckets = new Buckets(options.prefix)
    this.#replication = replicationOf(options, driver)
    this.#calls = new Calls(driver, this.#buckets, this.#replication)
    this.#index = new RecordIndex(this.#calls, this.#buckets)
  }

  async claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    const askedMs = systemClock.monotonicMs()
    return this.#within('claim', async () => {
      await this.#ready(signal)
      try {
        const answers = await this.#run('claim', {
          script: CLAIM,
          requests,
          identityOf,
          packing: CLAIM_PACKING,
          awaitReplicas: true,
          // Later than that, nobody releases it any more, and nobody would run its work.
          deadline: { askedMs, withinMs: Math.min(...requests.map(({ leaseMs }) => leaseMs)) },
          signal,
        })
        return answers.map((answer, n) => toClaimOutcome(answer, requests[n]!))
      } catch (error) {
        if (error instanceof NotReplicated) await this.#giveBack(requests, signal)
        throw error
      }
    })
  }

  async settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    return this.#within('settle', () => this.#settle(settlements, { awaitReplicas: true, signal }))
  }

  async renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    return this.#within('renew', async () => {
      const answers = await this.#run('renew', {
        script: RENEW,
        requests: renewals,
        identityOf,
        packing: RENEW_PACKING,
        awaitReplicas: true,
        signal,
      })
      return answers.map((answer) => answer.toString() === '1')
    })
  }

  /**
   * The script that renews writes only where there is a lease, so a replica would run it. Also
   * fails where claims are refused because of how the server is set up.
   */
  async probe(signal?: AbortSignal): Promise<void> {
    const { identity } = ABSENT_LEASE
    const key = this.#buckets.of(identity).base + identity
    await this.#within('probe', async () => {
      await this.#ready(signal)
      await this.#driver.send(['DEL', key], key, signal)
    })
    await this.renew([ABSENT_LEASE], signal)
  }

  async resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    return this.#within('resolve', async () => {
      const identities = await Promise.all(verdicts.map(({ ref }) => this.#index.find(ref, signal)))
      const found = verdicts.flatMap((verdict, n): FoundVerdict[] => {
        const identity = identities[n]
        return identity === undefined ? [] : [{ identity, verdict }]
      })
      const answers = await this.#run('resolve', {
        script: RESOLVE,
        requests: found,
        identityOf,
        packing: RESOLVE_PACKING,
        awaitReplicas: true,
        signal,
      })
      const outcomes = answers.map((answer, n) => toResolveOutcome(answer, found[n]!.identity))
      return identities.map((identity) =>
        identity === undefined ? { kind: 'not_found' } : outcomes.shift()!,
      )
    })
  }

  async sweep({ limit }: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]> {
    return this.#within('sweep', async () => {
      const untilMs = await this.#nowMs(signal)
      const ahead = { untilMs: untilMs + LEASE_AHEAD_MS, limit: Math.min(limit, HELD_ROWS), signal }
      const held = await this.#index.latestHeld(ahead)
      await this.#runOn('sweep', { script: SHORTEN, requests: held, signal })
      const lapsed = await this.#index.earliest(['in_progress'], { untilMs, limit, signal })
      const answers = await this.#runOn('sweep', { script: SWEEP, requests: lapsed, signal })
      return answers.flatMap((data, n) =>
        data.length === 0 ? [] : [toSwept(toRecord(data, lapsed[n]!.identity))],
      )
    })
  }

  async reap({ limit, abandoned }: ReapRequest, signal?: AbortSignal): Promise<ReapReport> {
    return this.#within('reap', async () => {
      const untilMs = await this.#nowMs(signal)
      const states: RecordState[] = ['completed', 'failed_retryable']
      if (abandoned !== undefined) states.push('pending')
      const expired = await this.#index.earliest(states, { untilMs, limit, signal })
      const more =
        abandoned === undefined
          ? []
          : ['1', Buffer.from(abandoned.result), `${abandoned.retentionMs}`]
      const answers = await this.#runOn('reap', { script: REAP, requests: expired, more, signal })
      const report = { removed: 0, expired: 0, abandoned: 0 }
      for (const answer of answers) {
        const what = REAP_CODES[Number(answer.toString())]
        if (what !== undefined) report[what]++
      }
      return report
    })
  }

  async read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined> {
    return this.#within('read', async () => {
      const identity = await this.#index.find(ref, signal)
      if (identity === undefined) return undefined
      const key = this.#buckets.of(identity).base + identity
      const data = (await this.#calls.ask(READ, { keys: [key] }, signal)) as Buffer
      if (data.length === 0) return undefined
      const view = toView(toRecord(data, identity))
      // The id was of an earlier record of this key.
      return ref.recordId === undefined || ref.recordId === view.recordId ? view : undefined
    })
  }

  async list({ state, limit }: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    return this.#within('list', async () => {
      const records = await this.#index.list(state, { limit, signal })
      return records.map((record) => ({ ...toView(record), result: undefined }))
    })
  }

  async now(signal?: AbortSignal): Promise<Date> {
    return this.#within('tell the time', async () => new Date(await this.#nowMs(signal)))
  }

  async check(signal?: AbortSignal): Promise<RedisCheck> {
    const context = {
      allowEviction: this.#allowEviction,
      waitsForReplicas: this.#replication !== undefined,
    }
    return this.#within('check', () => checkServer(this.#driver, context, signal))
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.#replication?.close()
  }

  async #settle(
    settlements: readonly Settlement[],
    more: { readonly awaitReplicas: boolean; readonly signal: AbortSignal | undefined },
  ): Promise<SettleOutcome[]> {
    const answers = await this.#run('settle', {
      script: SETTLE,
      requests: settlements,
      identityOf: ({ lease }) => lease.identity,
      packing: SETTLE_PACKING,
      ...more,
    })
    return answers.map(toSettleOutcome)
  }

  /**
   * Too few replicas have these claims, so their work does not run. Left alone they would lapse and
   * become `unknown`. The replicas may learn of the release whenever they can.
   */
  async #giveBack(
    requests: readonly ClaimRequest[],
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const releases = requests.map(({ identity, token, retentionMs }): Settlement => {
      const lease: Lease = { identity, token, attempt: 0 }
      const errorCode = 'not_replicated'
      return { kind: 'release', lease, proof: 'proven', errorCode, retentionMs }
    })
    await this.#settle(releases, { awaitReplicas: false, signal })
  }

  #run<Request>(
    operation: string,
    batch: Omit<Batch<Request>, 'operation' | 'now'>,
  ): Promise<Buffer[]> {
    const now = this.#clock === undefined ? '' : `${this.#clock.nowMs()}`
    return this.#calls.run({ operation, now, ...batch })
  }

  #runOn(
    operation: string,
    batch: Pick<Batch<Candidate>, 'script' | 'requests' | 'more' | 'signal'>,
  ): Promise<Buffer[]> {
    return this.#run(operation, { identityOf, packing: CANDIDATE_PACKING, ...batch })
  }

  async #nowMs(signal: AbortSignal | undefined): Promise<number> {
    if (this.#clock !== undefined) return this.#clock.nowMs()
    const time = await this.#driver.send(['TIME'], this.#buckets.all[0]!.due, signal)
    const [seconds, microseconds] = (time as Buffer[]).map(Number) as [number, number]
    return seconds * 1000 + Math.floor(microseconds / 1000)
  }

  /**
   * Once: what a server does not keep, nobody may rely on without having been told. A refusal
   * stands for a while, and ends without a restart when somebody has set the server right.
   */
  #ready(signal: AbortSignal | undefined): Promise<void> {
    const isOver = systemClock.monotonicMs() >= this.#refusedUntilMs
    if (this.#refusedUntilMs > 0 && isOver) this.#checked = undefined
    this.#checked ??= this.#checkOnce(signal).catch((error: unknown) => {
      // Where the server did not answer, the next claim asks again.
      if (!isRejected(error)) this.#checked = undefined
      throw error
    })
    // The claim that came first may wait for longer than this one.
    return untilAborted(this.#checked, signal)
  }

  async #checkOnce(signal: AbortSignal | undefined): Promise<void> {
    this.#refusedUntilMs = 0
    const { usable, findings } = await this.check(signal)
    if (!usable) {
      this.#refusedUntilMs = systemClock.monotonicMs() + RECHECK_MS
      const reasons = findings.filter(({ kind }) => kind === 'evicts' || kind === 'too_old')
      const cause = new Error(reasons.map(({ message }) => message).join('; '))
      throw storeFailed('claim', cause, 'rejected')
    }
    for (const { kind, message } of findings) warnOnce(message, `redis: ${kind}`)
  }

  async #within<Result>(operation: string, run: () => Promise<Result>): Promise<Result> {
    if (this.#isClosed) throw storeFailed(operation, new Error('the store is closed'))
    try {
      return await run()
    } catch (error) {
      throw storeFailed(operation, error)
    }
  }
}

function replicationOf(
  { waitReplicas }: ResolvedRedisStoreOptions,
  { connect }: Driver,
): Replication | undefined {
  if (waitReplicas === undefined) return undefined
  if (connect !== undefined) return new Replication(connect, waitReplicas)
  throw new InvalidOptionsError(
    'redisStore: waitReplicas does not work with a Cluster: WAIT covers one connection to one ' +
      'server, and the client of a cluster has many',
  )
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}
