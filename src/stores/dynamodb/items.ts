/** Records as items of the table, and back. */
import { RECORD_STATES, type RecordState, type StoredRecord } from '../../core/record.ts'
import type { StoreLanes } from '../../core/store.ts'
import type { FoundItem, Item } from './client.ts'

/** A record together with what only this store knows of it. */
export interface Kept {
  readonly record: StoredRecord
  /** New and random with every write: what the next write is conditional on. */
  readonly version: string
  /** The length of the lease: counted by whoever sees the record, so its end is no use. */
  readonly leaseMs: number
  /** Where the result is, if it is too large for the record's own item. */
  readonly parts: Parts | undefined
  /** When the service may remove the item by itself, in epoch seconds. */
  readonly ttlS: number | undefined
}

export interface Parts {
  readonly id: string
  readonly count: number
  readonly bytes: number
}

/**
 * One partition for each of them in the index of a state, so that none becomes a bottleneck. The
 * first version had so many, and readers always look at them.
 */
export const SHARDS_MIN = 8
export const SHARDS_MAX = 256

/** The sort key of a record; beside it lie its history and the parts of its result. */
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

/** What a list needs: everything but the result. */
export const LISTED: readonly string[] = ['identity', ...TEXTS, ...NUMBERS, 'version', 'leaseMs']

export function recordKey(identity: string): Item {
  return { identity: { S: identity }, item: { S: RECORD } }
}

/** By creation, which orders the records of one key; a record that is put twice is there once. */
export function historyKey({ identity, createdAtMs, recordId }: StoredRecord): Item {
  const order = String(createdAtMs).padStart(16, '0')
  return { identity: { S: identity }, item: { S: `${HISTORY}${order}#${recordId}` } }
}

export function partKey(identity: string, id: string, number: number): Item {
  return { identity: { S: identity }, item: { S: `result#${id}#${number}` } }
}

/** Where the table keeps the highest number of shards that was ever written to. */
export const SHARDS_KEY: Item = { identity: { S: '0'.repeat(32) }, item: { S: 'shards' } }

export function toItem(kept: Kept, shards: number): Item {
  const { record } = kept
  return {
    ...recordKey(record.identity),
    ...attributesOf(kept),
    stateShard: { S: stateShard(record.state, shardOf(record.identity, shards)) },
    listedAtMs: { N: String(listedAtMs(record)) },
    ...(kept.ttlS === undefined ? {} : { ttl: { N: String(kept.ttlS) } }),
  }
}

/** Not in the index of states, and never removed by the service. */
export function toHistoryItem(kept: Kept): Item {
  return { ...historyKey(kept.record), ...attributesOf(kept) }
}

export function stateShard(state: RecordState, shard: number): string {
  return `${state}#${shard}`
}

/** At least so many, so that one hot key has the claims of few others refused. */
const LANES_MIN = 64

/**
 * The parts of the table that are throttled apart. A lane lies in one shard of the index: a shard
 * without capacity fails in its own lanes, and the breaker leaves the keys of the others alone.
 */
export function lanesOf(shards: number): StoreLanes {
  const count = shards * Math.ceil(LANES_MIN / shards)
  return { count, of: (identity) => numberOf(identity) % count }
}

export function shardOf(identity: string, shards: number): number {
  return numberOf(identity) % shards
}

/** An identity is a hash, so that some of its digits do. */
function numberOf(identity: string): number {
  return Number.parseInt(identity.slice(-8), 16)
}

function listedAtMs(record: StoredRecord): number {
  return record.state === 'completed' ? record.expiresAtMs : record.lastRunAtMs
}

function attributesOf({ record, version, leaseMs, parts }: Kept): Item {
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

export function toKept(item: FoundItem): Kept {
  const text = (name: string) => item[name]?.S
  const number = (name: string) => {
    const value = item[name]?.N
    return value === undefined ? undefined : Number(value)
  }
  const has = <Value>(name: string, value: Value | undefined): Value => {
    if (value === undefined) throw new Error(`an item of the table has no ${name}: it is not ours`)
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
      // A lease is counted here by whoever sees it, and never by a clock that may be set back.
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
): Parts | undefined {
  if (id === undefined || count === undefined || bytes === undefined) return undefined
  return { id, count, bytes }
}
