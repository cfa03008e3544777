import { answerWithin } from '../../core/answer-within.ts'
import { systemClock, type Clock } from '../../core/clock.ts'
import { toSwept, toView } from '../../core/decide.ts'
import { LEASE_AHEAD_MS } from '../../core/shorten-lease.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
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
  StoreBatching,
  SweptRecord,
  Verdict,
} from '../../core/store.ts'
import { warnOnce } from '../../core/warn.ts'
import { toClaimOutcome, toRecord, toResolveOutcome, toSettleOutcome } from './answers.ts'
import { Buckets, TAGS, type Bucket } from './buckets.ts'
import { Calls, type Batch } from './calls.ts'
import { checkServer, judgeBucket, type CheckContext, type RedisCheck } from './check.ts'
import type { Driver } from './client.ts'
import { driverOf } from './driver.ts'
import { notSent, storeFailed } from './failures.ts'
import {
  resolveRedisStoreOptions,
  type RedisStoreOptions,
  type ResolvedRedisStoreOptions,
} from './options.ts'
import { Readiness } from './readiness.ts'
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
import { INFO, READ, REAP, REAP_CODES, RESOLVE, SHORTEN, SWEEP } from './upkeep-scripts.ts'

/**
 * Half of what a busy process has under way: while the server works on one batch, the process
 * prepares the next. One batch of all of them would have the two wait for each other.
 */
const BATCH_ROWS_MAX = 32

/** How long the servers of a cluster are waited for, to warn of what they do not keep. */
const WARN_MS = 5_000

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
      // A script has the keys of one bucket. While its call is under way, the next rows of the
      // bucket gather, so that one call at a time makes the fewest scripts.
      lanes: { count: TAGS.length, flushesMax: 1, of: (identity) => this.#laneOf(identity) },
    }
  }

  async claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    const askedMs = systemClock.monotonicMs()
    return this.#within('claim', async () => {
      const unready = this.#ready(requests, signal)
      if (unready !== undefined) await unready.catch(rejectUnsent)
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
   * fails where claims are refused because of how the server is set up. On a cluster, it tells
   * about the bucket of `identity` and its server.
   */
  async probe(identity: string, signal?: AbortSignal): Promise<void> {
    const lease = { ...ABSENT_LEASE, identity }
    const key = this.#buckets.of(identity).base + identity
    await this.#within('probe', async () => {
      await this.#ready([lease], signal)
      await this.#driver.send(['DEL', key], key, signal)
    })
    await this.renew([lease], signal)
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
    return this.#within('check', () => checkServer(this.#driver, this.#checkContext(), signal))
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
    try {
      await this.#settle(releases, { awaitReplicas: false, signal })
    } catch (error) {
      // A release that did not run leaves a claim that did.
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

  /** The bucket, on a cluster; a single server is one whole. */
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

  /** `undefined` where nothing has to be waited for. */
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
    const unknown = places.filter(({ base }) => !readiness.isReady(base))
    if (unknown.length === 0) return undefined
    const looks = [...new Set(unknown)].map((bucket) =>
      readiness.until(bucket.base, () => this.#checkBucket(bucket, signal), signal),
    )
    return Promise.all(looks)
  }

  /** Looks at the one server that has the bucket: another one may be silent. */
  async #checkBucket(bucket: Bucket, signal: AbortSignal | undefined): Promise<RedisCheck> {
    const info = await this.#calls.ask(INFO, { keys: [bucket.due] }, signal)
    this.#warnOfCluster()
    return judgeBucket(String(info), this.#checkContext())
  }

  /** Of what its servers do not keep: CONFIG, too, must be asked for that, and of every one. */
  #warnOfCluster(): void {
    if (this.#isWarned) return
    this.#isWarned = true
    const limit = { store: 'redis', call: 'check', timeoutMs: WARN_MS }
    answerWithin(systemClock, limit, (signal) => this.check(signal)).then(
      ({ findings }) => {
        for (const { kind, message } of findings) warnOnce(message, `redis: ${kind}`)
      },
      // A server is silent. The first claim of another bucket tries again.
      () => (this.#isWarned = false),
    )
  }

  async #within<Result>(operation: string, run: () => Promise<Result>): Promise<Result> {
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
    'redisStore: waitReplicas does not work with a Cluster: WAIT covers one connection to one ' +
      'server, and the client of a cluster has many',
  )
}

/** The claim waited for something else, which has failed. */
function rejectUnsent(error: unknown): never {
  throw notSent('claim', error)
}

function identityOf({ identity }: { readonly identity: string }): string {
  return identity
}
