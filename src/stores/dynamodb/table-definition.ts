import { rejectUnknownOptions } from '../../core/options.ts'
import { resolveTable } from './options.ts'

/** Index for the records of a state: sweep, reap and list read it. */
export const BY_STATE = 'by_state'

/** Index for records by their id. */
export const BY_RECORD_ID = 'by_record_id'

export interface TableDefinitionOptions {
  /**
   * Name of the table: the same as the option `table` of `dynamodbStore`.
   *
   * @default 'oncekey_record'
   */
  table?: string
}

/**
 * The table that the store needs, as inputs for `createTable` and `updateTimeToLive` of the SDK.
 * Returns a new object: you may add tags, encryption or provisioned capacity. Keep the keys, the
 * indexes and the TTL attribute as they are.
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
          // Few attributes, because every change of state writes this index.
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
