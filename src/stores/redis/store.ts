import { callStore } from '../../core/store/store-call.ts'
import { systemClock, type Clock } from '../../core/time/clock.ts'
import { toSwept, toView } from '../../core/record/decide.ts'
import { LEASE_AHEAD_MS } from '../../core/record/shorten-lease.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { checkRedisClient } from '../kit/redis-connections.ts'
import type { RecordState } from '../../core/record/record.ts'
import { ABSENT_LEASE } from '../../core/health/store-probe.ts'
import type { StoreBatching } from '../../core/store/batching.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Discard,
  DiscardOutcome,
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
} from '../../core/store/store.ts'
import { warnOnce } from '../../core/warn.ts'
import {
  toClaimOutcome,
  toDiscardOutcome,
  toRecord,
  toResolveOutcome,
  toSettleOutcome,
} from './scripts/answers.ts'
import { Buckets, TAGS, type Bucket } from './buckets.ts'
import { Calls, type Batch } from './calls.ts'
import { checkServer, judgeBucket, type CheckContext, type RedisCheck } from './check.ts'
import type { Driver } from './client.ts'
import { driverOf } from './driver/driver.ts'
import { notSent, storeFailed } from './failures.ts'
import {
  resolveRedisStoreOptions,
  type RedisStoreOptions,
  type ResolvedRedisStoreOptions,
} from './options.ts'
import { Readiness } from './readiness.ts'
import { RecordIndex } from './record-index.ts'
import { NotReplicated, Replication } from './driver/replication.ts'
import {
  CANDIDATE_PACKING,
  CLAIM_PACKING,
  DISCARD_PACKING,
  RENEW_PACKING,
  RESOLVE_PACKING,
  SETTLE_PACKING,
  type Candidate,
  type RecordVerdict,
} from './scripts/requests.ts'
import { CLAIM, RENEW, SETTLE } from './scripts/scripts.ts'
import { DISCARD, INFO, READ, REAP, REAP_CODES, RESOLVE, SHORTEN, SWEEP } from './scripts/upkeep.ts'

/**
 * Half of the open requests of a busy process: while the server runs one batch, the process
 * prepares the next. With one batch for all requests, the two would wait for each other.
 */
const BATCH_ROWS_MAX = 32

/** Time limit of the check of all servers of a cluster, which only produces warnings. */
const WARN_MS = 5_000

/** How many of the leases that end last a sweep reads. It must not read all records in progress. */
const HELD_ROWS = 1_024

/** A store in Redis: fast, and as durable as the configuration of the server. */
export interface RedisStore extends Store {
  /**
   * Checks the configuration of the server and returns what it does not guarantee. The store runs
   * this check before its first claim, too, and then warns once about each finding.
   */
  check(): Promise<RedisCheck>

  /** The time of the server, or of the `clock` option. */
  now(): Promise<Date>

  /**
   * Closes the connection that `waitReplicas` has opened. Later calls fail. The client stays open.
   */
  close(): Promise<void>
}

/**
 * Keeps records in Redis or in a Redis Cluster. A record that the server loses by eviction, a
 * restart or a failover is lost, and a retry runs its work again: see `check()`.
 */
export function redisStore(options: RedisStoreOptions): RedisStore {
  const resolved = resolveRedisStoreOptions(options)
  const driver = driverOf(resolved.client)
  checkRedisClient(resolved.client, 'redisStore')
  return new ScriptedStore(resolved, driver)
}

class ScriptedStore implements RedisStore {
  readonly name = 'redis'
  readonly batching: StoreBatching
  readonly #driver: Driver
  readonly #clock: Clock | undefined
  readonly #buckets: Buckets
  readonly #calls: Calls
  readonly #index: RecordIndex
  readonly #replication: Replication | undefined
  readonly #allowEviction: boolean
  readonly #readiness = new Readiness()
  #isWarned = false
  #isClosed = false

  constructor(options: ResolvedRedisStoreOptions, driver: Driver) {
    this.#driver = driver
    this.#clock = options.clock
    this.#allowEviction = options.allowEviction
    this.#buckets = new Buckets(options.prefix)
    this.#replication = replicationOf(options, driver)
    this.#calls = new Calls(driver, this.#buckets, this.#replication)
    this.#index = new RecordIndex(this.#calls, this.#buckets)
    this.batching = {
      rowsMax: BATCH_ROWS_MAX,
      flushesMax: 4,
      // On a cluster, a script takes keys of one bucket. While a call runs, the next requests of
      // its bucket gather, so one call at a time needs the fewest scripts.
      lanes: { count: TAGS.length, flushesMax: 1, of: (identity) => this.#laneOf(identity) },
    }
  }

  async claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    const startedMs = systemClock.monotonicMs()
    return this.#call('claim', async () => {
      const checks = this.#ready(requests, signal)
      if (checks !== undefined) await checks.catch(rejectUnsent)
      try {
        const answers = await this.#run('claim', {
          script: CLAIM,
          requests,
          identityOf,
          packing: CLAIM_PACKING,
          awaitReplicas: true,
          // No process would run the work of a later claim, or release it.
          deadline: { startedMs, withinMs: Math.min(...requests.map(({ leaseMs }) => leaseMs)) },
          signal,
        })
        return answers.map((answer, n) => toClaimOutcome(answer, requests[n]!))
      } catch (error) {
        if (error instanceof NotReplicated) await this.#releaseClaims(requests, signal)
        throw error
      }
    })
  }

  async settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    return this.#call('settle', () => this.#settle(settlements, { awaitReplicas: true, signal }))
  }

  async renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    return this.#call('renew', async () => {
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
   * Needed because `renew` writes only if the lease exists, so a replica also accepts its script.
   * The probe fails, too, if the configuration of the server makes claims fail. On a cluster, it
   * covers the bucket of `identity` and its server.
   */
  async probe(identity: string, signal?: AbortSignal): Promise<void> {
    const lease = { ...ABSENT_LEASE, identity }
    const key = this.#buckets.of(identity).base + identity
    await this.#call('probe', async () => {
      await this.#ready([lease], signal)
      await this.#driver.send(['DEL', key], key, signal)
    })
    await this.renew([lease], signal)
  }

  async resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    return this.#call('resolve', async () => {
      const identities = await Promise.all(verdicts.map(({ ref }) => this.#index.find(ref, signal)))
      const found = verdicts.flatMap((verdict, n): RecordVerdict[] => {
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
    return this.#call('sweep', async () => {
      const untilMs = await this.#nowMs(signal)
      const ahead = { untilMs: untilMs + LEASE_AHEAD_MS, limit: Math.min(limit, HELD_ROWS), signal }
      const held = await this.#index.latestHeld(ahead)
      await this.#runMaintenance('sweep', { script: SHORTEN, requests: held, signal })
      const lapsed = await this.#index.earliest(['in_progress'], { untilMs, limit, signal })
      const sweep = { script: SWEEP, requests: lapsed, signal }
      const answers = await this.#runMaintenance('sweep', sweep)
      return answers.flatMap((data, n) =>
        data.length === 0 ? [] : [toSwept(toRecord(data, lapsed[n]!.identity))],
      )
    })
  }

  async reap({ limit, abandoned }: ReapRequest, signal?: AbortSignal): Promise<ReapReport> {
    return this.#call('reap', async () => {
      const untilMs = await this.#nowMs(signal)
      const states: RecordState[] = ['completed', 'failed_retryable', 'expired']
      if (abandoned !== undefined) states.push('pending')
      const expired = await this.#index.earliest(states, { untilMs, limit, signal })
      const more =
        abandoned === undefined
          ? []
          : ['1', Buffer.from(abandoned.result), `${abandoned.retentionMs}`]
      const reap = { script: REAP, requests: expired, more, signal }
      const answers = await this.#runMaintenance('reap', reap)
      const report = { removed: 0, expired: 0, abandoned: 0 }
      for (const answer of answers) {
        const effect = REAP_CODES[Number(answer.toString())]
        if (effect !== undefined) report[effect]++
      }
      return report
    })
  }

  async read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined> {
    return this.#call('read', async () => {
      const identity = await this.#index.find(ref, signal)
      if (identity === undefined) return undefined
      const key = this.#buckets.of(identity).base + identity
      const data = (await this.#calls.ask(READ, { keys: [key] }, signal)) as Buffer
      if (data.length === 0) return undefined
      const view = toView(toRecord(data, identity))
      // If the ids differ, `ref` names an earlier record of this key.
      return ref.recordId === undefined || ref.recordId === view.recordId ? view : undefined
    })
  }

  async list({ state, limit }: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    return this.#call('list', async () => {
      const records = await this.#index.list(state, { limit, signal })
      return records.map((record) => ({ ...toView(record), result: undefined }))
    })
  }

  async discard(discard: Discard, signal?: AbortSignal): Promise<DiscardOutcome> {
    return this.#call('discard', async () => {
      const identity = await this.#index.find(discard.ref, signal)
      if (identity === undefined) return { kind: 'not_found' }
      const [answer] = await this.#run('discard', {
        script: DISCARD,
        requests: [{ identity, discard }],
        identityOf,
        packing: DISCARD_PACKING,
        awaitReplicas: true,
        signal,
      })
      return toDiscardOutcome(answer!, identity)
    })
  }

  async now(signal?: AbortSignal): Promise<Date> {
    return this.#call('tell the time', async () => new Date(await this.#nowMs(signal)))
  }

  async check(signal?: AbortSignal): Promise<RedisCheck> {
    return this.#call('check', () => checkServer(this.#driver, this.#checkContext(), signal))
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
   * Releases claims that too few replicas have. Their work does not run, and without a release they
   * would lapse and become `unknown`. The release does not wait for replicas. The release of a
   * look-up is fenced, because no record has its token.
   */
  async #releaseClaims(
    requests: readonly ClaimRequest[],
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const releases = requests.map(({ identity, token, retentionMs }): Settlement => {
      const lease: Lease = { identity, token, attempt: 0 }
      const errorCode = 'not_replicated'
      return { kind: 'release', lease, proof: 'proven', errorCode, retentionMs }
    })
    try {
      await this.#settle(releases, { awaitReplicas: false, signal })
    } catch (error) {
      // The claim was written, even if its release was not.
      throw storeFailed('claim', error, 'unavailable', false)
    }
  }

  #run<Request>(
    operation: string,
    batch: Omit<Batch<Request>, 'operation' | 'now'>,
  ): Promise<Buffer[]> {
    const now = this.#clock === undefined ? '' : `${this.#clock.nowMs()}`
    return this.#calls.run({ operation, now, ...batch })
  }

  /** Runs a script on records that an index named. */
  #runMaintenance(
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

  /** The number of the bucket on a cluster. `undefined` for a single server, which has no lanes. */
  #laneOf(identity: string): number | undefined {
    return this.#calls.isCluster ? this.#buckets.numberOf(identity) : undefined
  }

  #checkContext(): CheckContext {
    return {
      allowEviction: this.#allowEviction,
      waitsForReplicas: this.#replication !== undefined,
      isCluster: this.#driver.isCluster,
    }
  }

  /** Checks the servers of these requests. `undefined` if claims can be sent at once. */
  #ready(
    requests: readonly { readonly identity: string }[],
    signal: AbortSignal | undefined,
  ): Promise<unknown> | undefined {
    const readiness = this.#readiness
    if (!this.#driver.isCluster) {
      if (readiness.isReady('')) return undefined
      return readiness.until('', () => this.check(signal), signal)
    }
    const places = requests.map(({ identity }) => this.#buckets.of(identity))
    const unchecked = places.filter(({ base }) => !readiness.isReady(base))
    if (unchecked.length === 0) return undefined
    const checks = [...new Set(unchecked)].map((bucket) =>
      readiness.until(bucket.base, () => this.#checkBucket(bucket, signal), signal),
    )
    return Promise.all(checks)
  }

  /** Checks only the server that has the bucket: other servers may be silent. */
  async #checkBucket(bucket: Bucket, signal: AbortSignal | undefined): Promise<RedisCheck> {
    const info = await this.#calls.ask(INFO, { keys: [bucket.due] }, signal)
    this.#warnAboutCluster()
    return judgeBucket(String(info), this.#checkContext())
  }

  /**
   * Warns about what the servers do not guarantee. Claims do not wait for this check, because it
   * needs INFO and CONFIG from every server.
   */
  #warnAboutCluster(): void {
    if (this.#isWarned) return
    this.#isWarned = true
    const limit = { store: 'redis', call: 'check', timeoutMs: WARN_MS }
    callStore(systemClock, limit, (signal) => this.check(signal)).then(
      ({ findings }) => {
        for (const { kind, message } of findings) warnOnce(message, `redis: ${kind}`)
      },
      // A server did not answer. The first claim of another bucket repeats the check.
      () => (this.#isWarned = false),
    )
  }

  /** Wraps every error of `run` as a failure of `operation`. Fails if the store is closed. */
  async #call<Result>(operation: string, run: () => Promise<Result>): Promise<Result> {
    if (this.#isClosed) throw notSent(operation, new Error('the store is closed'))
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
    'redisStore: waitReplicas does not work with a Redis Cluster, because WAIT covers only one ' +
      'connection to one server; remove it and set min-replicas-to-write on the servers',
  )
}

/** The check before the claim has failed. */
function rejectUnsent(error: unknown): never {
  throw notSent('claim', error)
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}
