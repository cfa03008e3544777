/** Converts records to items of the table, and back. */
import { RECORD_STATES, type RecordState, type StoredRecord } from '../../core/record/record.ts'
import type { StoreLanes } from '../../core/store/batching.ts'
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
/** Sorts after all keys of the history: `$` sorts after `#`. */
export const HISTORY_END = 'history$'

/**
 * The name, in the index of states, of expired records whose keys are refused for a limited time.
 * They are ordered by the end of that time, so that a reap reads only those that it may remove.
 * Records whose keys are refused for ever have the name `expired`, which no reap reads.
 */
export const REFUSED_UNTIL = 'refused_until'

/** A part of the index of states. */
export type IndexedState = RecordState | typeof REFUSED_UNTIL

const TEXTS = [
  'recordId',
  'tenant',
  'operation',
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
  'refuseForMs',
  'reconcileAtMs',
  'createdAtMs',
  'lastRunAtMs',
  'completedAtMs',
  'expiresAtMs',
] as const satisfies readonly (keyof StoredRecord)[]

/** Attributes that a list reads: all except the result. */
export const LISTED: readonly string[] = [
  'identity',
  'key',
  ...TEXTS,
  ...NUMBERS,
  'version',
  'leaseMs',
]

export function recordKey(identity: string): Item {
  return { identity: { S: identity }, item: { S: RECORD } }
}

/** A move ends the record, or only its result, which an operator has discarded. */
export type Ending = 'record' | 'result'

/**
 * The key of a copy in the history, ordered by the creation of the record. Contains the record id,
 * so writing a copy twice makes one item. The copies of a record with a discarded result are
 * ordered by attempt and completion, because abandoned work completes without a new attempt. They
 * sort before the copy of the end of the record: `!` sorts before `#`.
 */
export function historyKey(record: StoredRecord, ending: Ending): Item {
  const { identity, createdAtMs, recordId, attempt, completedAtMs = 0 } = record
  const order = ending === 'record' ? '' : `!${padded(attempt)}.${padded(completedAtMs)}`
  return {
    identity: { S: identity },
    item: { S: `${historyStart(createdAtMs)}${order}#${recordId}` },
  }
}

/** The start of the sort keys of all copies of a record in the history. */
export function historyStart(createdAtMs: number): string {
  return HISTORY + padded(createdAtMs)
}

/** Numbers in sort keys have a fixed length, because they are compared as text. */
function padded(number: number): string {
  return String(number).padStart(NUMBER_LENGTH, '0')
}

const NUMBER_LENGTH = 16
const START_LENGTH = HISTORY.length + NUMBER_LENGTH

/** The start of a sort key of the history, and what the copy under this key has ended. */
export function splitHistoryKey(item: string): { start: string; ending: Ending } {
  const ending = item[START_LENGTH] === '!' ? 'result' : 'record'
  return { start: item.slice(0, START_LENGTH), ending }
}

export function partKey(identity: string, id: string, number: number): Item {
  return { identity: { S: identity }, item: { S: `result#${id}#${number}` } }
}

/** The item with the highest number of shards that a store has ever written to. */
export const SHARDS_KEY: Item = { identity: { S: '0'.repeat(32) }, item: { S: 'shards' } }

export function toItem(stored: StoredItem, shards: number): Item {
  const { record } = stored
  const { state, listedAtMs } = placeOf(record)
  return {
    ...recordKey(record.identity),
    ...attributesOf(stored),
    stateShard: { S: stateShard(state, shardOf(record.identity, shards)) },
    listedAtMs: { N: String(listedAtMs) },
    ...(stored.ttlS === undefined ? {} : { ttl: { N: String(stored.ttlS) } }),
  }
}

/** Without the attributes of the index of states, and without a TTL. */
export function toHistoryItem(stored: StoredItem, ending: Ending): Item {
  return { ...historyKey(stored.record, ending), ...attributesOf(stored) }
}

export function stateShard(state: IndexedState, shard: number): string {
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

/** The place of a record in the index of states. */
function placeOf(record: StoredRecord): { state: IndexedState; listedAtMs: number } {
  const { state, reconcileAtMs, expiresAtMs, lastRunAtMs } = record
  if (state === 'expired' && reconcileAtMs !== undefined) {
    return { state: REFUSED_UNTIL, listedAtMs: reconcileAtMs }
  }
  return { state, listedAtMs: state === 'completed' ? expiresAtMs : lastRunAtMs }
}

/** Separates the id seed from the key. No key contains a NUL. */
const SEED_MARK = '\0'

/**
 * The id seed is stored behind the key, in one attribute. An earlier version of the package writes
 * whole items, and would lose an attribute that it does not know: a retry would then get other ids
 * than the first attempt. The text of the key is in every item that such a version writes for the
 * same record, and a new record under the key has another one. So the seed is always that of the
 * record.
 */
function toKeyText({ key, idSeed }: StoredRecord): string {
  return idSeed === undefined ? key : key + SEED_MARK + idSeed
}

function fromKeyText(text: string): Pick<StoredRecord, 'key' | 'idSeed'> {
  const at = text.indexOf(SEED_MARK)
  if (at === -1) return { key: text, idSeed: undefined }
  return { key: text.slice(0, at), idSeed: text.slice(at + SEED_MARK.length) }
}

function attributesOf({ record, version, leaseMs, parts }: StoredItem): Item {
  const item: Item = {
    version: { S: version },
    leaseMs: { N: String(leaseMs) },
    key: { S: toKeyText(record) },
  }
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
  const { key, idSeed } = fromKeyText(has('key', text('key')))
  return {
    version: has('version', text('version')),
    leaseMs: has('leaseMs', number('leaseMs')),
    parts: toParts(text('partsId'), number('partsCount'), number('partsBytes')),
    ttlS: number('ttl'),
    record: {
      identity: has('identity', text('identity')),
      recordId: has('recordId', text('recordId')),
      idSeed,
      tenant: has('tenant', text('tenant')),
      operation: has('operation', text('operation')),
      key,
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
      // Lost when an earlier version writes the record: its key is then refused for ever.
      refuseForMs: number('refuseForMs'),
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
