import type { Clock } from '../../core/time/clock.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, flag, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { DynamodbClient } from './client.ts'
import { SHARDS_MAX, SHARDS_MIN } from './items.ts'
import { INLINE_BYTES, INLINE_BYTES_MAX } from './results.ts'

export interface DynamodbStoreOptions {
  /**
   * A `DynamoDB` of `@aws-sdk/client-dynamodb`, not a `DynamoDBClient`, which has no methods for
   * the calls. The store does not destroy it. The store adds middleware to it, and reads the dates
   * of its answers. Allow 300 connections or more (`maxSockets`), plus those of your own calls, so
   * that one tenant whose calls get no answer cannot occupy all of them.
   */
  client: DynamodbClient

  /**
   * Name or ARN of the table, which you create from `tableDefinition()`. A name has 3 to 255
   * letters, digits, dots, dashes and underscores.
   *
   * @default 'oncekey_record'
   */
  table?: string

  /**
   * Keeps expired records, for audit, instead of removing them. They stay in the same table until
   * you delete them. Records that are written with this option get no TTL, so the service does not
   * remove them.
   *
   * @default false
   */
  history?: boolean

  /**
   * Partitions of the index that sweep, reap and list read, 8 to 256. Each allows 500 requests a
   * second, and costs every sweep on every node one more read. You may raise or lower it at any
   * time: the table keeps the highest number, and all of these shards are read.
   *
   * @default 8
   */
  shards?: number

  /**
   * The largest result, in bytes, that is stored in the item of its record, up to 32 KiB. A larger
   * result is stored in separate items, which costs one more write and one more round trip when it
   * is recorded. A higher limit saves these, but makes replays more expensive: the first replay in
   * another process costs a refused write, charged by the size of the record's item.
   *
   * @default 1024
   */
  inlineBytesMax?: number

  /** For tests. @default the service's time for expiries, and a monotonic clock for leases */
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

/** The service's rules for names. A table of another account is named by its ARN. */
const TABLE_PATTERN = /^([\w.-]{3,255}|arn:[\w:./-]{3,1000})$/

/** Applies defaults and checks every option. Does not change the caller's object. */
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
  const methods: Partial<Record<string, unknown>> =
    typeof client === 'object' && client !== null ? { ...methodsOf(client) } : {}
  if (METHODS.every((name) => typeof methods[name] === 'function') && hasMiddleware(client)) {
    return client
  }
  throw new InvalidOptionsError(
    typeof methods['send'] === 'function'
      ? 'dynamodbStore: client is a bare DynamoDBClient, which has no methods for the calls: ' +
          'pass a DynamoDB of @aws-sdk/client-dynamodb, new DynamoDB(config)'
      : 'dynamodbStore: client must be a DynamoDB of @aws-sdk/client-dynamodb, ' +
          `new DynamoDB(config), got ${describe(client)}`,
  )
}

function methodsOf(client: object): Record<string, unknown> {
  return Object.fromEntries(
    [...METHODS, 'send'].map((name) => [name, Reflect.get(client, name) as unknown]),
  )
}

/** The store reads the service's time from answers with a middleware. */
function hasMiddleware(client: DynamodbClient): boolean {
  const stack: unknown = client.middlewareStack
  return (
    typeof stack === 'object' && stack !== null && 'add' in stack && typeof stack.add === 'function'
  )
}
