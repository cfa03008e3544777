import { backoffMs, type Backoff } from '../../core/time/retry.ts'
import { AsyncLocalStorage } from 'node:async_hooks'
import { sleep, systemClock, type Clock } from '../../core/time/clock.ts'
import { CallLimits } from './driver/call-limits.ts'
import type {
  CallOptions,
  DynamodbClient,
  FoundItem,
  Item,
  QueryInput,
  QueryOutput,
} from './client.ts'
import { isConditionFailed } from './failures.ts'
import { LISTED, recordKey, SHARDS_KEY, toItem, fromItem, type StoredItem } from './items.ts'
import { ShardCount } from './shards/shard-count.ts'
import { listenToAttempts, type RowWrites } from './driver/write-attempts.ts'

/** The service's limit for `BatchGetItem`. */
const BATCH_MAX = 100
/** A busy service leaves some keys of a batch unprocessed. They are sent again. */
const BATCH_TRIES = 8
const BATCH_BACKOFF: Backoff = { firstMs: 50, maxMs: 3_200 }

const NONE: readonly FoundItem[] = []

export type PutOutcome =
  | { readonly kind: 'written' }
  /** `found`: the stored record; `undefined` if the key is free. */
  | { readonly kind: 'conflict'; readonly found: StoredItem | undefined }

export interface CallsOptions {
  readonly name: string
  readonly shards: number
  /** For tests. @default `systemClock` */
  readonly clock?: Clock | undefined
}

/**
 * The calls to the service. Reads are consistent unless the caller chooses otherwise. Writes of
 * records are conditional on the version that was read, so a write that the SDK repeats, or that
 * arrives late, has no effect the second time.
 */
export class Calls {
  readonly shards: ShardCount
  readonly #shardsWritten: number
  readonly #client: DynamodbClient
  readonly #limits: CallLimits
  readonly #name: string
  /** The signal of the current store call, which may make many calls to the service. */
  readonly #signal = new AsyncLocalStorage<AbortSignal | undefined>()

  constructor(client: DynamodbClient, { name, shards, clock = systemClock }: CallsOptions) {
    this.shards = new ShardCount(this, shards, clock)
    this.#shardsWritten = shards
    this.#client = client
    listenToAttempts(client)
    this.#limits = new CallLimits(client)
    this.#name = name
  }

  /** Aborts the calls of `run` when the signal aborts, and rejects every later call of it. */
  until<Result>(signal: AbortSignal | undefined, run: () => Promise<Result>): Promise<Result> {
    return this.#signal.run(signal, run)
  }

  async get(identity: string): Promise<StoredItem | undefined> {
    const item = await this.getItem(recordKey(identity))
    return item && fromItem(item)
  }

  async getItem(
    key: Item,
    consistency: 'strong' | 'eventual' = 'strong',
  ): Promise<FoundItem | undefined> {
    const input = { TableName: this.#name, Key: key, ConsistentRead: consistency === 'strong' }
    const { Item: item } = await this.#call((options) => this.#client.getItem(input, options))
    return item
  }

  /** The highest number of shards that a store has announced; `undefined` if none is recorded. */
  async getShards(): Promise<number | undefined> {
    const shards = (await this.getItem(SHARDS_KEY))?.['shards']?.N
    return shards === undefined ? undefined : Number(shards)
  }

  /** Raises the recorded number of shards. Has no effect if it is as high already. */
  async raiseShards(shards: number): Promise<void> {
    const input = {
      TableName: this.#name,
      Item: { ...SHARDS_KEY, shards: { N: String(shards) } },
      ConditionExpression: 'attribute_not_exists(#identity) OR #shards < :shards',
      ExpressionAttributeNames: { '#identity': 'identity', '#shards': 'shards' },
      ExpressionAttributeValues: { ':shards': { N: String(shards) } },
    }
    try {
      await this.#call((options) => this.#client.putItem(input, options))
    } catch (error) {
      if (!isConditionFailed(error)) throw error
    }
  }

  /** The records of these identities that exist, without their results, in any order. */
  async getListed(identities: readonly string[]): Promise<StoredItem[]> {
    const found: StoredItem[] = []
    for (let at = 0; at < identities.length; at += BATCH_MAX) {
      const keys = identities.slice(at, at + BATCH_MAX).map((identity) => recordKey(identity))
      found.push(...(await this.#getBatch(keys)))
    }
    return found
  }

  async #getBatch(keys: Item[]): Promise<StoredItem[]> {
    const names = Object.fromEntries(LISTED.map((name) => [`#${name}`, name]))
    const projection = Object.keys(names).join(', ')
    const found: StoredItem[] = []
    let left = keys
    for (let tries = 1; left.length > 0; tries++) {
      const request = {
        Keys: left,
        ConsistentRead: true,
        ProjectionExpression: projection,
        ExpressionAttributeNames: names,
      }
      const input = { RequestItems: { [this.#name]: request } }
      const answer = await this.#call((options) => this.#client.batchGetItem(input, options))
      // One table was read, so all items are from it, even if the answer names it differently.
      found.push(...Object.values(answer.Responses ?? {}).flatMap((items) => items.map(fromItem)))
      const unanswered = Object.values(answer.UnprocessedKeys ?? {}).flatMap(
        ({ Keys }) => (Keys ?? NONE) as Item[],
      )
      if (unanswered.length > 0) {
        if (tries === BATCH_TRIES) {
          throw new Error(
            `the service left ${unanswered.length} keys of a batch unprocessed after ` +
              `${BATCH_TRIES} tries: raise the capacity of the table`,
          )
        }
        await sleep(systemClock, backoffMs(BATCH_BACKOFF, tries))
      }
      left = unanswered
    }
    return found
  }

  /**
   * Replaces `expected`, or creates the record if `expected` is `undefined`. `writes` records
   * whether the write may have taken effect.
   */
  async put(
    next: StoredItem,
    expected: StoredItem | undefined,
    writes?: RowWrites,
  ): Promise<PutOutcome> {
    const announcing = this.shards.announce()
    if (announcing !== undefined) {
      await this.#call(({ abortSignal }) => untilAborted(announcing, abortSignal!))
    }
    const item = toItem(next, this.#shardsWritten)
    const input = { TableName: this.#name, Item: item, ...onlyIf(expected) }
    return this.#ifUnchanged(next.record.identity, (options) => {
      const put = () => this.#client.putItem(input, options)
      return writes === undefined ? put() : writes.make(next.version, put)
    })
  }

  async remove(expected: StoredItem): Promise<PutOutcome> {
    const { identity } = expected.record
    const input = { TableName: this.#name, Key: recordKey(identity), ...onlyIf(expected) }
    return this.#ifUnchanged(identity, (options) => this.#client.deleteItem(input, options))
  }

  async putItem(item: Item): Promise<void> {
    const input = { TableName: this.#name, Item: item }
    await this.#call((options) => this.#client.putItem(input, options))
  }

  /**
   * Writes a copy to the history, unless the stored copy has a completion and this one has none:
   * the writer was then delayed, and the record was completed after the writer had read it.
   */
  async putCopy(item: Item): Promise<void> {
    if ('completedAtMs' in item) return this.putItem(item)
    const input = {
      TableName: this.#name,
      Item: item,
      ConditionExpression: 'attribute_not_exists(#completedAtMs)',
      ExpressionAttributeNames: { '#completedAtMs': 'completedAtMs' },
    }
    try {
      await this.#call((options) => this.#client.putItem(input, options))
    } catch (error) {
      if (!isConditionFailed(error)) throw error
    }
  }

  async deleteItem(key: Item): Promise<void> {
    const input = { TableName: this.#name, Key: key }
    await this.#call((options) => this.#client.deleteItem(input, options))
  }

  query(input: Omit<QueryInput, 'TableName'>): Promise<QueryOutput> {
    const whole = { TableName: this.#name, ...input }
    return this.#call((options) => this.#client.query(whole, options))
  }

  async #ifUnchanged(
    identity: string,
    write: (options: CallOptions) => Promise<unknown>,
  ): Promise<PutOutcome> {
    try {
      await this.#call(write)
      return { kind: 'written' }
    } catch (error) {
      if (!isConditionFailed(error)) throw error
      // DynamoDB returns the item that it found. Some compatible servers do not.
      const found = error.Item === undefined ? await this.get(identity) : fromItem(error.Item)
      return { kind: 'conflict', found }
    }
  }

  #call<Answer>(call: (options: CallOptions) => Promise<Answer>): Promise<Answer> {
    return this.#limits.call(call, this.#signal.getStore())
  }
}

/** Settles like `shared`, or rejects as soon as the signal aborts. */
function untilAborted(shared: Promise<void>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true })
    shared.then(resolve, reject)
  })
}

function onlyIf(expected: StoredItem | undefined) {
  const common = { ReturnValuesOnConditionCheckFailure: 'ALL_OLD' as const }
  if (expected === undefined) {
    return {
      ...common,
      ConditionExpression: 'attribute_not_exists(#identity)',
      ExpressionAttributeNames: { '#identity': 'identity' },
    }
  }
  return {
    ...common,
    ConditionExpression: '#version = :version',
    ExpressionAttributeNames: { '#version': 'version' },
    ExpressionAttributeValues: { ':version': { S: expected.version } },
  }
}
