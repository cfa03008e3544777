/** Converts records to items of the table, and back. */
import { RECORD_STATES, type RecordState, type StoredRecord } from '../../core/record/record.ts'
import type { StoreLanes } from '../../core/store/store.ts'
import type { FoundItem, Item } from './client.ts'

/** A record with the attributes that only this store has. */
export interface StoredItem {
  readonly record: StoredRecord
  /** Random, and new with every write. The next write is conditional on it. */
  readonly version: string
  /** Length of the lease. Each process counts it from when it first sees the version. */
  readonly leaseMs: number
  /** The items that contain the result, if it is too large for the record's item. */
  readonly parts: ResultParts | undefined
  /** When the service may remove the item, in epoch seconds. */
  readonly ttlS: number | undefined
}

export interface ResultParts {
  readonly id: string
  readonly count: number
  readonly bytes: number
}

/**
 * Shards of the index of states. Each state has one index partition for each shard, so that no
 * partition becomes a bottleneck. The first version had 8, and readers always read at least these.
 */
export const SHARDS_MIN = 8
export const SHARDS_MAX = 256

/** The sort key of a record. History items and result parts have the same partition key. */
export const RECORD = 'record'
export const HISTORY = 'history#'

const TEXTS = [
  'recordId',
  'tenant',
  'operation',
  'key',
  'fingerprint',
  'state',
  'token',
  'onLapse',
  'afterExpiry',
  'proof',
  'recoveryPoint',
  'errorCode',
] as const satisfies readonly (keyof StoredRecord)[]

const NUMBERS = [
  'attempt',
  'lapses',
  'leaseUntilMs',
  'reconcileAtMs',
  'createdAtMs',
  'lastRunAtMs',
  'completedAtMs',
  'expiresAtMs',
] as const satisfies readonly (keyof StoredRecord)[]

/** Attributes that a list reads: all except the result. */
export const LISTED: readonly string[] = ['identity', ...TEXTS, ...NUMBERS, 'version', 'leaseMs']

export function recordKey(identity: string): Item {
  return { identity: { S: identity }, item: { S: RECORD } }
}

/** Ordered by creation. Contains the record id, so writing a record twice makes one item. */
export function historyKey({ identity, createdAtMs, recordId }: StoredRecord): Item {
  const order = String(createdAtMs).padStart(16, '0')
  return { identity: { S: identity }, item: { S: `${HISTORY}${order}#${recordId}` } }
}

export function partKey(identity: string, id: string, number: number): Item {
  return { identity: { S: identity }, item: { S: `result#${id}#${number}` } }
}

/** The item with the highest number of shards that a store has ever written to. */
export const SHARDS_KEY: Item = { identity: { S: '0'.repeat(32) }, item: { S: 'shards' } }

export function toItem(stored: StoredItem, shards: number): Item {
  const { record } = stored
  return {
    ...recordKey(record.identity),
    ...attributesOf(stored),
    stateShard: { S: stateShard(record.state, shardOf(record.identity, shards)) },
    listedAtMs: { N: String(listedAtMs(record)) },
    ...(stored.ttlS === undefined ? {} : { ttl: { N: String(stored.ttlS) } }),
  }
}

/** Without the attributes of the index of states, and without a TTL. */
export function toHistoryItem(stored: StoredItem): Item {
  return { ...historyKey(stored.record), ...attributesOf(stored) }
}

export function stateShard(state: RecordState, shard: number): string {
  return `${state}#${shard}`
}

/** Minimum number of lanes. With many lanes, one throttled key blocks few other keys. */
const LANES_MIN = 64

/**
 * The parts of the table that can be throttled separately. Each lane is within one shard of the
 * index: if a shard has no capacity left, only its lanes fail, and the breaker of other lanes stays
 * closed.
 */
export function lanesOf(shards: number): StoreLanes {
  const count = shards * Math.ceil(LANES_MIN / shards)
  return { count, of: (identity) => numberOf(identity) % count }
}

export function shardOf(identity: string, shards: number): number {
  return numberOf(identity) % shards
}

/** An identity is a hash, so some of its digits are enough for an even spread. */
function numberOf(identity: string): number {
  return Number.parseInt(identity.slice(-8), 16)
}

function listedAtMs(record: StoredRecord): number {
  return record.state === 'completed' ? record.expiresAtMs : record.lastRunAtMs
}

function attributesOf({ record, version, leaseMs, parts }: StoredItem): Item {
  const item: Item = { version: { S: version }, leaseMs: { N: String(leaseMs) } }
  for (const name of TEXTS) {
    const value = record[name]
    if (value !== undefined) item[name] = { S: value }
  }
  for (const name of NUMBERS) {
    const value = record[name]
    if (value !== undefined) item[name] = { N: String(value) }
  }
  if (record.result !== undefined) item['result'] = { B: record.result }
  if (parts !== undefined) {
    item['partsId'] = { S: parts.id }
    item['partsCount'] = { N: String(parts.count) }
    item['partsBytes'] = { N: String(parts.bytes) }
  }
  return item
}

export function fromItem(item: FoundItem): StoredItem {
  const text = (name: string) => item[name]?.S
  const number = (name: string) => {
    const value = item[name]?.N
    return value === undefined ? undefined : Number(value)
  }
  const has = <Value>(name: string, value: Value | undefined): Value => {
    if (value === undefined)
      throw new Error(`an item of the table has no ${name}: oncekey did not write it`)
    return value
  }
  const state = RECORD_STATES.find((known) => known === text('state'))
  return {
    version: has('version', text('version')),
    leaseMs: has('leaseMs', number('leaseMs')),
    parts: toParts(text('partsId'), number('partsCount'), number('partsBytes')),
    ttlS: number('ttl'),
    record: {
      identity: has('identity', text('identity')),
      recordId: has('recordId', text('recordId')),
      tenant: has('tenant', text('tenant')),
      operation: has('operation', text('operation')),
      key: has('key', text('key')),
      fingerprint: has('fingerprint', text('fingerprint')),
      state: has('known state', state),
      attempt: has('attempt', number('attempt')),
      lapses: has('lapses', number('lapses')),
      token: has('token', text('token')),
      leaseUntilMs: has('leaseUntilMs', number('leaseUntilMs')),
      // Only for stores whose clock may be set back. This store counts leases in each process.
      leaseMs: undefined,
      onLapse: has('onLapse', text('onLapse')) as StoredRecord['onLapse'],
      afterExpiry: has('afterExpiry', text('afterExpiry')) as StoredRecord['afterExpiry'],
      proof: text('proof') as StoredRecord['proof'],
      recoveryPoint: text('recoveryPoint'),
      result: item['result']?.B,
      errorCode: text('errorCode'),
      reconcileAtMs: number('reconcileAtMs'),
      tries: 0,
      createdAtMs: has('createdAtMs', number('createdAtMs')),
      lastRunAtMs: has('lastRunAtMs', number('lastRunAtMs')),
      completedAtMs: number('completedAtMs'),
      expiresAtMs: has('expiresAtMs', number('expiresAtMs')),
    },
  }
}

function toParts(
  id: string | undefined,
  count: number | undefined,
  bytes: number | undefined,
): ResultParts | undefined {
  if (id === undefined || count === undefined || bytes === undefined) return undefined
  return { id, count, bytes }
}
