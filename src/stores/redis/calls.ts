import { createHash } from 'node:crypto'
import { answerWithin } from '../../core/answer-within.ts'
import { systemClock } from '../../core/clock.ts'
import type { Bucket, Buckets } from './buckets.ts'
import type { Argument, Driver } from './client.ts'
import {
  isCrossSlot,
  isRowFault,
  isScriptMissing,
  notSent,
  ranNothing,
  storeFailed,
} from './failures.ts'
import { Packer } from './packer.ts'
import type { Replication } from './replication.ts'
import { sendAgain, unsent } from './refusals.ts'
import { checkIdentity, type Packing } from './requests.ts'
import { ServerClocks } from './server-clocks.ts'
import { untilAborted } from './until-aborted.ts'

/** Requests in one script at the most: it is how long the server does nothing else. */
export const ROWS_MAX = 128

/** The server's time, of whichever server has the key: `TIME` itself has none to go by. */
const TELL_TIME = `local time = redis.call('TIME')
return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))`

/** For messages. */
const TELL = 'tell the time'

/** An answer to that which takes longer is of no use to a claim, and is asked for again. */
const TELL_TIME_MS = 5_000

export interface Batch<Request> {
  /** For messages. */
  readonly operation: string
  readonly script: string
  readonly requests: readonly Request[]
  readonly identityOf: (request: Request) => string
  readonly packing: Packing<Request>
  /** The time of a test's clock, or empty for the server's own. */
  readonly now: string
  /** What follows the fixed arguments. */
  readonly more?: readonly Argument[]
  /**
   * A script that reaches the server later than this does nothing. It takes the deadline as its
   * last argument, and answers its own time behind the answers.
   */
  readonly deadline?: Deadline
  /** Not acknowledged before the replicas have it, where the store waits for them. */
  readonly awaitReplicas?: boolean
  /** Gives the call up. */
  readonly signal?: AbortSignal | undefined
}

interface Deadline {
  /** By our monotonic clock, when the caller asked. */
  readonly askedMs: number
  readonly withinMs: number
}

/** What one script takes. */
interface Script {
  /** The numbers of its requests in the batch. */
  readonly rows: readonly number[]
  readonly buckets: readonly Bucket[]
  readonly recordKeys: readonly string[]
  readonly packed: Buffer
}

/** Sends scripts: one for a whole batch, or, on a cluster, one for each bucket at a time. */
export class Calls {
  readonly #driver: Driver
  readonly #buckets: Buckets
  readonly #replication: Replication | undefined
  readonly #hashes = new Map<string, string>()
  readonly #clocks = new ServerClocks()
  /** Questions for the time that are under way: claims that come meanwhile share the answer. */
  readonly #tellings = new Map<string, Promise<void>>()
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

  /** One answer for each request, in their order. */
  async run<Request>(batch: Batch<Request>): Promise<Buffer[]> {
    if (batch.requests.length === 0) return []
    return this.knowingSlots(() => this.#run(batch))
  }

  /**
   * Runs `call` again if the client turns out to be a client of single servers in front of a
   * server of a cluster: nothing ran, and now we know.
   */
  async knowingSlots<Answer>(call: () => Promise<Answer>): Promise<Answer> {
    try {
      return await call()
    } catch (error) {
      if (this.#isCluster || !isCrossSlot(error)) throw error
      this.#isCluster = true
    }
    return call()
  }

  /** A script that needs no batch. The keys must be of one bucket on a cluster. */
  async ask(
    script: string,
    { keys, args = [] }: { readonly keys: readonly string[]; readonly args?: readonly string[] },
    signal?: AbortSignal,
  ): Promise<unknown> {
    return this.#evaluate(script, { keys, args, send: this.#sending(signal) })
  }

  async #run<Request>(batch: Batch<Request>): Promise<Buffer[]> {
    // All before any is sent: a value that cannot be kept rejects the batch, and nothing has run.
    const groups = this.#groupsOf(batch).map((rows) => this.#scriptsOf(batch, rows))
    // The usual case: the engine sends the rows of one bucket, or all to one server.
    if (groups.length === 1 && groups[0]!.length === 1) return this.#runOnce(batch, groups[0]![0]!)
    const answers = Array.from<Buffer>({ length: batch.requests.length })
    let hasRun = false
    const ended = await Promise.allSettled(
      groups.map(async (scripts) => {
        // One behind the other: a later request may be about the record of an earlier one.
        for (const script of scripts) {
          const replies = await this.#runOnce(batch, script)
          hasRun = true
          for (const [n, row] of script.rows.entries()) answers[row] = replies[n]!
        }
      }),
    )
    const failed = ended.filter((one) => one.status === 'rejected')
    if (failed.length === 0) return answers
    const unclear = failed.find(({ reason }) => !isRowFault(reason) && !ranNothing(reason))
    if (unclear !== undefined) throw unclear.reason
    const refused = failed.find(({ reason }) => ranNothing(reason))
    if (refused !== undefined && !hasRun) throw refused.reason
    // Some did not run, and others have: no row can be told which it was.
    if (refused !== undefined) {
      throw storeFailed(batch.operation, refused.reason, 'unavailable', false)
    }
    // `rejected` says that nothing was written. Where another script has run, that is not so.
    throw storeFailed(batch.operation, failed[0]!.reason, hasRun ? 'unavailable' : 'rejected')
  }

  #scriptsOf<Request>(batch: Batch<Request>, group: readonly number[]): Script[] {
    const scripts: Script[] = []
    for (let at = 0; at < group.length; at += ROWS_MAX) {
      scripts.push(this.#pack(batch, group.slice(at, at + ROWS_MAX)))
    }
    return scripts
  }

  /** The numbers of the requests that may share a script. */
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

  async #runOnce<Request>(
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
        : await this.#inTime(batch, buckets[0]!, (deadline) => evaluate([deadline]))
    const answers = Array.isArray(replies) ? (replies as Buffer[]).slice(0, rows.length) : []
    if (answers.length === rows.length) return answers
    throw storeFailed(batch.operation, new Error(`${rows.length} requests, another answer`))
  }

  async #inTime<Request>(
    { deadline, signal }: Batch<Request>,
    bucket: Bucket,
    evaluate: (deadline: string) => Promise<unknown>,
  ): Promise<unknown> {
    const { askedMs, withinMs } = deadline!
    const place = this.#isCluster ? bucket.base : ''
    if (!this.#clocks.knows(place)) {
      await this.#learnTime(place, bucket, signal).catch((error: unknown) => {
        throw notSent(TELL, error)
      })
    }
    const ask = async () => {
      const sentMs = systemClock.monotonicMs()
      const leftMs = withinMs - (sentMs - askedMs)
      // What comes first, the check or the time, was kept by the client for too long.
      if (leftMs <= 0) throw unsent(new Error(`LATE by ${Math.ceil(-leftMs)} ms: it was not sent`))
      const replies = await evaluate(this.#clocks.deadline(place, sentMs, leftMs))
      this.#clocks.learn(place, Number((replies as Buffer[]).at(-1)), sentMs)
      return replies
    }
    try {
      return await ask()
    } catch (error) {
      if (!this.#clocks.isCorrected(place, error, { askedMs, withinMs })) throw error
      return sendAgain(error, ask)
    }
  }

  /** Before the first claim: it could not say until when it is meant. */
  #learnTime(place: string, { due }: Bucket, signal: AbortSignal | undefined): Promise<void> {
    const underWay = this.#tellings.get(place)
    // The claim that came first may wait for longer than this one.
    if (underWay !== undefined) return untilAborted(underWay, signal)
    const limit = { store: 'redis', call: TELL, timeoutMs: TELL_TIME_MS }
    const ask = (limited: AbortSignal) =>
      this.ask(TELL_TIME, { keys: [due] }, signal ?? limited).catch((error: unknown) => {
        throw storeFailed(limit.call, error)
      })
    const telling = answerWithin(systemClock, limit, ask)
      // Counted from the answer, however long it took: a deadline may be too early, never too late.
      .then((told) => this.#clocks.learn(place, Number(told), systemClock.monotonicMs()))
      .finally(() => this.#tellings.delete(place))
    this.#tellings.set(place, telling)
    return telling
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

  /** By its hash; whole where the server does not have it (any more). */
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
