import { rejectUnknownOptions } from '../../core/options.ts'
import { resolveTable } from './options.ts'

/** Where the records of a state are found: sweep, reap and list. */
export const BY_STATE = 'by_state'

/** Where a record is found by its id. */
export const BY_RECORD_ID = 'by_record_id'

export interface TableDefinitionOptions {
  /** @default 'oncekey_record' */
  table?: string
}

/**
 * The table that the store expects, as inputs of `createTable` and `updateTimeToLive`. A copy: add
 * tags, encryption or provisioned capacity as you like, and keep keys and indexes as they are.
 */
export function tableDefinition(options: TableDefinitionOptions = {}) {
  rejectUnknownOptions('tableDefinition', options, ['table'])
  const TableName = resolveTable('tableDefinition', options.table)
  return {
    createTable: {
      TableName,
      BillingMode: 'PAY_PER_REQUEST' as const,
      AttributeDefinitions: [
        { AttributeName: 'identity', AttributeType: 'S' as const },
        { AttributeName: 'item', AttributeType: 'S' as const },
        { AttributeName: 'stateShard', AttributeType: 'S' as const },
        { AttributeName: 'listedAtMs', AttributeType: 'N' as const },
        { AttributeName: 'recordId', AttributeType: 'S' as const },
      ],
      KeySchema: keySchema('identity', 'item'),
      GlobalSecondaryIndexes: [
        {
          IndexName: BY_STATE,
          KeySchema: keySchema('stateShard', 'listedAtMs'),
          // Small, because it is written with every change of state.
          Projection: {
            ProjectionType: 'INCLUDE' as const,
            NonKeyAttributes: ['version', 'leaseMs', 'expiresAtMs'],
          },
        },
        {
          IndexName: BY_RECORD_ID,
          KeySchema: keySchema('recordId'),
          Projection: { ProjectionType: 'KEYS_ONLY' as const },
        },
      ],
    },
    timeToLive: {
      TableName,
      TimeToLiveSpecification: { AttributeName: 'ttl', Enabled: true },
    },
  }
}

function keySchema(hash: string, range?: string) {
  return [
    { AttributeName: hash, KeyType: 'HASH' as const },
    ...(range === undefined ? [] : [{ AttributeName: range, KeyType: 'RANGE' as const }]),
  ]
}
