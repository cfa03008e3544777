import type { Clock } from '../../core/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { DynamodbClient } from './client.ts'
import { SHARDS_MAX, SHARDS_MIN } from './items.ts'
import { INLINE_BYTES, INLINE_BYTES_MAX } from './results.ts'

export interface DynamodbStoreOptions {
  /**
   * A `DynamoDB` of `@aws-sdk/client-dynamodb` (not a `DynamoDBClient`, which can do nothing
   * without the SDK's commands). It stays yours: the store does not destroy it. The store listens
   * to the dates of its answers.
   */
  client: DynamodbClient

  /**
   * Name or ARN of the table that `tableDefinition()` describes.
   *
   * @default 'oncekey_record'
   */
  table?: string

  /**
   * Keeps expired records, for audit, instead of removing them. They stay in the same table until
   * you remove them, and the service no longer removes anything by itself.
   *
   * @default false
   */
  history?: boolean

  /**
   * Partitions of the index that sweep, reap and list read, 8 to 256. Each takes 500 requests a
   * second; one more costs every sweep of every node a read. It may be changed at any time: the
   * table remembers the highest number, and all of them are read.
   *
   * @default 8
   */
  shards?: number

  /**
   * The largest result, in bytes, that lies in the item of its record, up to 32 KiB. A replay that
   * another process answers costs a refused write, charged by the size of that item. A larger
   * result has items of its own: that costs one more write, and one more round trip, when it is
   * recorded.
   *
   * @default 1024
   */
  inlineBytesMax?: number

  /** For tests. By default expiries go by the service's time, and leases by a local count. */
  clock?: Clock
}

export interface ResolvedDynamodbStoreOptions {
  readonly client: DynamodbClient
  readonly table: string
  readonly history: boolean
  readonly shards: number
  readonly inlineBytesMax: number
  readonly clock: Clock | undefined
}

const OPTION_NAMES = [
  'client',
  'table',
  'history',
  'shards',
  'inlineBytesMax',
  'clock',
] as const satisfies readonly (keyof DynamodbStoreOptions)[]

const METHODS = ['getItem', 'putItem', 'deleteItem', 'batchGetItem', 'query'] as const

/** The service's own rules for names; an ARN is how a table of another account is named. */
const TABLE_PATTERN = /^([\w.-]{3,255}|arn:[\w:./-]{3,1000})$/

/** Fills defaults and checks every rule once. The caller's object is not touched. */
export function resolveDynamodbStoreOptions(
  options: DynamodbStoreOptions,
): ResolvedDynamodbStoreOptions {
  rejectUnknownOptions('dynamodbStore', options, OPTION_NAMES)
  return Object.freeze({
    client: checkedClient(options.client),
    table: resolveTable('dynamodbStore', options.table),
    history: flag('dynamodbStore: history', options.history, false),
    shards: wholeNumber('dynamodbStore: shards', options.shards, {
      fallback: SHARDS_MIN,
      min: SHARDS_MIN,
      max: SHARDS_MAX,
    }),
    inlineBytesMax: wholeNumber('dynamodbStore: inlineBytesMax', options.inlineBytesMax, {
      fallback: INLINE_BYTES,
      min: 0,
      max: INLINE_BYTES_MAX,
    }),
    clock: options.clock,
  })
}

export function resolveTable(where: string, table: unknown = 'oncekey_record'): string {
  if (typeof table === 'string' && TABLE_PATTERN.test(table)) return table
  throw new InvalidOptionsError(
    `${where}: table must be a name of 3 to 255 letters, digits, dots, dashes and underscores, ` +
      `or an ARN, got ${describe(table)}`,
  )
}

function checkedClient(client: DynamodbClient): DynamodbClient {
  const given: Partial<Record<string, unknown>> =
    typeof client === 'object' && client !== null ? { ...methodsOf(client) } : {}
  if (METHODS.every((name) => typeof given[name] === 'function') && hasMiddleware(client)) {
    return client
  }
  throw new InvalidOptionsError(
    typeof given['send'] === 'function'
      ? 'dynamodbStore: client is a bare client, which can do nothing without the commands of ' +
          'the SDK: pass a DynamoDB of @aws-sdk/client-dynamodb, new DynamoDB(config)'
      : 'dynamodbStore: client must be a DynamoDB of @aws-sdk/client-dynamodb, ' +
          `new DynamoDB(config), got ${describe(client)}`,
  )
}

function methodsOf(client: object): Record<string, unknown> {
  return Object.fromEntries(
    [...METHODS, 'send'].map((name) => [name, Reflect.get(client, name) as unknown]),
  )
}

/** Answers tell the service's time through it. */
function hasMiddleware(client: DynamodbClient): boolean {
  const stack: unknown = client.middlewareStack
  return (
    typeof stack === 'object' && stack !== null && 'add' in stack && typeof stack.add === 'function'
  )
}
