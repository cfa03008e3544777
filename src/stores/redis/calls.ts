import { createHash } from 'node:crypto'
import { callStore } from '../../core/store/store-call.ts'
import { systemClock } from '../../core/time/clock.ts'
import type { Bucket, Buckets } from './buckets.ts'
import type { Argument, Driver } from './client.ts'
import {
  didNotRun,
  isCrossSlot,
  isRowFault,
  isScriptMissing,
  notSent,
  storeFailed,
} from './failures.ts'
import { Packer } from './scripts/packer.ts'
import type { Replication } from './driver/replication.ts'
import { markUnsent, sendAgain } from './refusals.ts'
import { checkIdentity, type Packing } from './scripts/requests.ts'
import { ServerClocks } from './driver/server-clocks.ts'
import { untilAborted } from './driver/until-aborted.ts'

/** Most requests in one script: the server does nothing else while a script runs. */
export const ROWS_MAX = 128

/**
 * Reads the time of the server that has the key. A script, because `TIME` names no key, and the
 * client of a cluster could send it to any server.
 */
const TIME_SCRIPT = `local time = redis.call('TIME')
return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))`

/** For messages. */
const READ_TIME = 'tell the time'

/** A slower answer is of no use: the waiting claims fail, and the next one reads the time again. */
const READ_TIME_MS = 5_000

export interface Batch<Request> {
  /** For messages. */
  readonly operation: string
  readonly script: string
  readonly requests: readonly Request[]
  readonly identityOf: (request: Request) => string
  readonly packing: Packing<Request>
  /** The time of a test's clock, or empty for the clock of the server. */
  readonly now: string
  /** Arguments after the fixed ones. */
  readonly more?: readonly Argument[]
  /**
   * A script that reaches the server after the deadline does nothing. The script takes the deadline
   * as its last argument, and returns the time of the server after its answers.
   */
  readonly deadline?: Deadline
  /** Acknowledged only when the replicas have the write, if the store waits for replicas. */
  readonly awaitReplicas?: boolean
  /** Aborts the call. */
  readonly signal?: AbortSignal | undefined
}

interface Deadline {
  /** Start of the caller's call, by the monotonic clock of this process. */
  readonly startedMs: number
  readonly withinMs: number
}

/** The input of one script. */
interface Script {
  /** Indexes of its requests in the batch. */
  readonly rows: readonly number[]
  readonly buckets: readonly Bucket[]
  readonly recordKeys: readonly string[]
  readonly packed: Buffer
}

/**
 * Sends batches as scripts of at most `ROWS_MAX` requests. On a cluster, all requests of a script
 * are of one bucket.
 */
export class Calls {
  readonly #driver: Driver
  readonly #buckets: Buckets
  readonly #replication: Replication | undefined
  readonly #hashes = new Map<string, string>()
  readonly #clocks = new ServerClocks()
  /** Calls for the time that have no answer yet. Claims that arrive before it share the answer. */
  readonly #timeCalls = new Map<string, Promise<void>>()
  #isCluster: boolean

  constructor(driver: Driver, buckets: Buckets, replication: Replication | undefined) {
    this.#driver = driver
    this.#buckets = buckets
    this.#replication = replication
    this.#isCluster = driver.isCluster
  }

  get isCluster(): boolean {
    return this.#isCluster
  }

  /** Returns one answer for each request, in the order of the requests. */
  async run<Request>(batch: Batch<Request>): Promise<Buffer[]> {
    if (batch.requests.length === 0) return []
    return this.detectingCluster(() => this.#run(batch))
  }

  /**
   * Repeats `call` when a client for single servers turns out to be connected to a server of a
   * cluster. That server has run nothing. The repeated call and all later calls send one script for
   * each bucket.
   */
  async detectingCluster<Answer>(call: () => Promise<Answer>): Promise<Answer> {
    try {
      return await call()
    } catch (error) {
      if (this.#isCluster || !isCrossSlot(error)) throw error
      this.#isCluster = true
    }
    return call()
  }

  /** Runs a script without a batch. On a cluster, all keys must be of one bucket. */
  async ask(
    script: string,
    { keys, args = [] }: { readonly keys: readonly string[]; readonly args?: readonly string[] },
    signal?: AbortSignal,
  ): Promise<unknown> {
    return this.#evaluate(script, { keys, args, send: this.#sending(signal) })
  }

  async #run<Request>(batch: Batch<Request>): Promise<Buffer[]> {
    // Packs everything before it sends anything: a value that cannot be stored rejects the batch,
    // and no script has run.
    const groups = this.#groupsOf(batch).map((rows) => this.#scriptsOf(batch, rows))
    // The usual case: the engine sends requests of one bucket, or all to one server.
    if (groups.length === 1 && groups[0]!.length === 1)
      return this.#runScript(batch, groups[0]![0]!)
    const answers = Array.from<Buffer>({ length: batch.requests.length })
    let hasRun = false
    const ended = await Promise.allSettled(
      groups.map(async (scripts) => {
        // One after the other: a later request may be about the record of an earlier one.
        for (const script of scripts) {
          const replies = await this.#runScript(batch, script)
          hasRun = true
          for (const [n, row] of script.rows.entries()) answers[row] = replies[n]!
        }
      }),
    )
    const failed = ended.filter((one) => one.status === 'rejected')
    if (failed.length === 0) return answers
    const unclear = failed.find(({ reason }) => !isRowFault(reason) && !didNotRun(reason))
    if (unclear !== undefined) throw unclear.reason
    const refused = failed.find(({ reason }) => didNotRun(reason))
    if (refused !== undefined && !hasRun) throw refused.reason
    // Some scripts ran and others did not. The one error of the batch cannot say which.
    if (refused !== undefined) {
      throw storeFailed(batch.operation, refused.reason, 'unavailable', false)
    }
    // `rejected` means that nothing was written, which is untrue if another script has run.
    throw storeFailed(batch.operation, failed[0]!.reason, hasRun ? 'unavailable' : 'rejected')
  }

  #scriptsOf<Request>(batch: Batch<Request>, group: readonly number[]): Script[] {
    const scripts: Script[] = []
    for (let at = 0; at < group.length; at += ROWS_MAX) {
      scripts.push(this.#pack(batch, group.slice(at, at + ROWS_MAX)))
    }
    return scripts
  }

  /** Groups the indexes of the requests that may share a script. */
  #groupsOf<Request>({ requests, identityOf, operation }: Batch<Request>): number[][] {
    try {
      for (const request of requests) checkIdentity(identityOf(request))
    } catch (error) {
      throw storeFailed(operation, error)
    }
    if (!this.#isCluster) return [[...requests.keys()]]
    const groups = new Map<Bucket, number[]>()
    for (const [row, request] of requests.entries()) {
      const bucket = this.#buckets.of(identityOf(request))
      const group = groups.get(bucket)
      if (group === undefined) groups.set(bucket, [row])
      else group.push(row)
    }
    return [...groups.values()]
  }

  async #runScript<Request>(
    batch: Batch<Request>,
    { rows, buckets, packed, recordKeys }: Script,
  ): Promise<Buffer[]> {
    const keys = buckets.flatMap(({ due, ids }) => [due, ids]).concat(recordKeys)
    const replication = batch.awaitReplicas === true ? this.#replication : undefined
    if (replication !== undefined) keys.push(buckets[0]!.mark)
    const mark = replication === undefined ? '' : '1'
    const args = [batch.now, `${buckets.length}`, packed, mark, ...(batch.more ?? [])]
    const send =
      replication === undefined
        ? this.#sending(batch.signal)
        : (command: readonly Argument[]) => replication.send(command, batch.signal)
    const evaluate = (more: readonly Argument[]) =>
      this.#evaluate(batch.script, { keys, args: [...args, ...more], send })
    const replies =
      batch.deadline === undefined || batch.now !== ''
        ? await evaluate([])
        : await this.#withDeadline(batch, buckets[0]!, (deadline) => evaluate([deadline]))
    const answers = Array.isArray(replies) ? (replies as Buffer[]).slice(0, rows.length) : []
    if (answers.length === rows.length) return answers
    const fault = `the script gave ${answers.length} answers to ${rows.length} requests`
    throw storeFailed(batch.operation, new Error(fault))
  }

  async #withDeadline<Request>(
    { deadline, signal }: Batch<Request>,
    bucket: Bucket,
    evaluate: (deadline: string) => Promise<unknown>,
  ): Promise<unknown> {
    const { startedMs, withinMs } = deadline!
    const place = this.#isCluster ? bucket.base : ''
    if (!this.#clocks.knows(place)) {
      await this.#learnTime(place, bucket, signal).catch((error: unknown) => {
        throw notSent(READ_TIME, error)
      })
    }
    const ask = async () => {
      const sentMs = systemClock.monotonicMs()
      const leftMs = withinMs - (sentMs - startedMs)
      // The calls before it, for the check and the time, waited in the client for too long.
      if (leftMs <= 0) {
        throw markUnsent(new Error(`LATE by ${Math.ceil(-leftMs)} ms: the script was not sent`))
      }
      const replies = await evaluate(this.#clocks.deadline(place, sentMs, leftMs))
      this.#clocks.learn(place, Number((replies as Buffer[]).at(-1)), sentMs)
      return replies
    }
    try {
      return await ask()
    } catch (error) {
      if (!this.#clocks.isCorrected(place, error, { startedMs, withinMs })) throw error
      return sendAgain(error, ask)
    }
  }

  /** Runs before the first claim, whose deadline needs the time of the server. */
  #learnTime(place: string, { due }: Bucket, signal: AbortSignal | undefined): Promise<void> {
    const pending = this.#timeCalls.get(place)
    // The claim that started the call may wait longer than this one.
    if (pending !== undefined) return untilAborted(pending, signal)
    const limit = { store: 'redis', call: READ_TIME, timeoutMs: READ_TIME_MS }
    const ask = (limited: AbortSignal) =>
      this.ask(TIME_SCRIPT, { keys: [due] }, signal ?? limited).catch((error: unknown) => {
        throw storeFailed(limit.call, error)
      })
    const call = callStore(systemClock, limit, ask)
      // Counted from the arrival of the answer: a deadline may be too early, but never too late.
      .then((time) => this.#clocks.learn(place, Number(time), systemClock.monotonicMs()))
      .finally(() => this.#timeCalls.delete(place))
    this.#timeCalls.set(place, call)
    return call
  }

  #pack<Request>(batch: Batch<Request>, rows: readonly number[]): Script {
    const { requests, identityOf, packing, operation } = batch
    const buckets: Bucket[] = []
    const numbers = new Map<Bucket, number>()
    try {
      const bytes = rows.reduce((sum, row) => sum + packing.bytesOf(requests[row]!), 0)
      const packer = new Packer(bytes)
      const recordKeys = rows.map((row) => {
        const request = requests[row]!
        const identity = identityOf(request)
        const bucket = this.#buckets.of(identity)
        let number = numbers.get(bucket)
        if (number === undefined) numbers.set(bucket, (number = buckets.push(bucket)))
        packing.pack(packer, request, number)
        return bucket.base + identity
      })
      return { rows, buckets, recordKeys, packed: packer.finish() }
    } catch (error) {
      throw storeFailed(operation, error, 'rejected')
    }
  }

  /** Sends the hash of the script, and then the whole script if the server does not have it. */
  async #evaluate(
    script: string,
    {
      keys,
      args,
      send,
    }: {
      readonly keys: readonly string[]
      readonly args: readonly Argument[]
      readonly send: (args: readonly Argument[], key: string) => Promise<unknown>
    },
  ): Promise<unknown> {
    let hash = this.#hashes.get(script)
    if (hash === undefined) {
      hash = createHash('sha1').update(script).digest('hex')
      this.#hashes.set(script, hash)
    }
    const rest = [`${keys.length}`, ...keys, ...args]
    try {
      return await send(['EVALSHA', hash, ...rest], keys[0]!)
    } catch (error) {
      if (!isScriptMissing(error)) throw error
      return sendAgain(error, () => send(['EVAL', script, ...rest], keys[0]!))
    }
  }

  #sending(signal: AbortSignal | undefined) {
    return (args: readonly Argument[], key: string) => this.#driver.send(args, key, signal)
  }
}
