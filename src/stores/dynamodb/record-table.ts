import { AsyncLocalStorage } from 'node:async_hooks'
import { sleep, systemClock, type Clock } from '../../core/clock.ts'
import { CallLimits } from './call-limits.ts'
import type {
  CallOptions,
  DynamodbClient,
  FoundItem,
  Item,
  QueryInput,
  QueryOutput,
} from './client.ts'
import { isConditionFailed } from './failures.ts'
import { LISTED, recordKey, SHARDS_KEY, toItem, toKept, type Kept } from './items.ts'
import { ShardCount } from './shard-count.ts'
import { listenToAttempts, type RowWrites } from './write-attempts.ts'

/** The service's own limit. */
const BATCH_MAX = 100
/** What the service leaves out of a batch, because it is busy, is asked for again. */
const BATCH_TRIES = 8
const BATCH_PAUSE_MS = 25

/** No answer was given to these, and the rest of the world goes on. */
const NONE: readonly FoundItem[] = []

export type PutOutcome =
  | { readonly kind: 'written' }
  /** What is there instead; nothing, where the key is free. */
  | { readonly kind: 'conflict'; readonly found: Kept | undefined }

export interface RecordTableOptions {
  readonly name: string
  readonly shards: number
  /** For tests. */
  readonly clock?: Clock | undefined
}

/**
 * The calls that are made to the service. Reads are consistent. Writes of records are conditional
 * on the version that was read, so a write that the SDK repeats, or that arrives late, does nothing
 * the second time.
 */
export class RecordTable {
  readonly shards: ShardCount
  readonly #shardsWritten: number
  readonly #client: DynamodbClient
  readonly #limits: CallLimits
  readonly #name: string
  /** The signal of the store call that is being served: it makes many calls to the service. */
  readonly #signal = new AsyncLocalStorage<AbortSignal | undefined>()

  constructor(client: DynamodbClient, { name, shards, clock = systemClock }: RecordTableOptions) {
    this.shards = new ShardCount(this, shards, clock)
    this.#shardsWritten = shards
    this.#client = client
    listenToAttempts(client)
    this.#limits = new CallLimits(client)
    this.#name = name
  }

  /** Ends the calls that `run` makes when the signal is aborted, and lets it make no more. */
  until<Result>(signal: AbortSignal | undefined, run: () => Promise<Result>): Promise<Result> {
    return this.#signal.run(signal, run)
  }

  async get(identity: string): Promise<Kept | undefined> {
    const item = await this.getItem(recordKey(identity))
    return item && toKept(item)
  }

  async getItem(
    key: Item,
    consistency: 'strong' | 'eventual' = 'strong',
  ): Promise<FoundItem | undefined> {
    const input = { TableName: this.#name, Key: key, ConsistentRead: consistency === 'strong' }
    const { Item: item } = await this.#call((options) => this.#client.getItem(input, options))
    return item
  }

  /** The highest number of shards that was written to, where it is higher than the default. */
  async getShards(): Promise<number | undefined> {
    const shards = (await this.getItem(SHARDS_KEY))?.['shards']?.N
    return shards === undefined ? undefined : Number(shards)
  }

  /** Unless another has raised it as far already. */
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

  /** The records of these keys, without their results; those that are there, in any order. */
  async getListed(identities: readonly string[]): Promise<Kept[]> {
    const found: Kept[] = []
    for (let at = 0; at < identities.length; at += BATCH_MAX) {
      const keys = identities.slice(at, at + BATCH_MAX).map((identity) => recordKey(identity))
      found.push(...(await this.#getBatch(keys)))
    }
    return found
  }

  async #getBatch(keys: Item[]): Promise<Kept[]> {
    const names = Object.fromEntries(LISTED.map((name) => [`#${name}`, name]))
    const projection = Object.keys(names).join(', ')
    const found: Kept[] = []
    let left = keys
    for (let tries = 1; left.length > 0; tries++) {
      const asked = {
        Keys: left,
        ConsistentRead: true,
        ProjectionExpression: projection,
        ExpressionAttributeNames: names,
      }
      const input = { RequestItems: { [this.#name]: asked } }
      const answer = await this.#call((options) => this.#client.batchGetItem(input, options))
      // One table was asked, so there is one answer, whatever name the service gives it.
      found.push(...Object.values(answer.Responses ?? {}).flatMap((items) => items.map(toKept)))
      const unanswered = Object.values(answer.UnprocessedKeys ?? {}).flatMap(
        ({ Keys }) => (Keys ?? NONE) as Item[],
      )
      if (unanswered.length > 0) {
        if (tries === BATCH_TRIES) throw new Error('the service leaves keys of a batch unread')
        await sleep(systemClock, BATCH_PAUSE_MS * 2 ** tries)
      }
      left = unanswered
    }
    return found
  }

  /** Writes in place of `expected`, or of nothing. `writes` learns what becomes of it. */
  async put(next: Kept, expected: Kept | undefined, writes?: RowWrites): Promise<PutOutcome> {
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

  async remove(expected: Kept): Promise<PutOutcome> {
    const { identity } = expected.record
    const input = { TableName: this.#name, Key: recordKey(identity), ...onlyIf(expected) }
    return this.#ifUnchanged(identity, (options) => this.#client.deleteItem(input, options))
  }

  async putItem(item: Item): Promise<void> {
    const input = { TableName: this.#name, Item: item }
    await this.#call((options) => this.#client.putItem(input, options))
  }

  /**
   * A copy for the history, unless what is there has a completion that this one has not: whoever
   * stood still with it before the record was completed comes too late.
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
      // The service says what it found; what does not is asked.
      const found = error.Item === undefined ? await this.get(identity) : toKept(error.Item)
      return { kind: 'conflict', found }
    }
  }

  #call<Answer>(call: (options: CallOptions) => Promise<Answer>): Promise<Answer> {
    return this.#limits.call(call, this.#signal.getStore())
  }
}

/** Rejects as soon as the signal of a call aborts, whatever becomes of what it waits for. */
function untilAborted(shared: Promise<void>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true })
    shared.then(resolve, reject)
  })
}

function onlyIf(expected: Kept | undefined) {
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
