// Takes about 36 s.
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { afterAll, beforeAll } from 'vitest'
import { dynamodbStore, type DynamodbStoreOptions } from '../../../src/stores/dynamodb/index.ts'
import {
  clientConfig,
  startDynalite,
  type DynaliteOptions,
  type DynamoServer,
} from '../../servers/dynalite.ts'
import { runStoreCases, type StoreUnderTest } from '../run-store-cases.ts'

const WITHOUT_TRANSACTION = {
  transaction: 'DynamoDB has no transaction that a handler could keep open while it runs',
}

interface Variant {
  readonly name: string
  readonly server: DynaliteOptions
  readonly options: Omit<DynamodbStoreOptions, 'client' | 'table' | 'clock'>
  readonly table: () => string
  readonly without: StoreUnderTest['without']
}

const random = () => crypto.randomUUID().slice(0, 8)

const VARIANTS: readonly Variant[] = [
  {
    name: 'dynamodb',
    server: {},
    options: {},
    table: () => `oncekey_${random()}`,
    without: {
      ...WITHOUT_TRANSACTION,
      history: 'the option is off, so expired records are removed',
    },
  },
  {
    name: 'dynamodb that returns the item of a refused write, with a history and another name',
    server: { returnsItems: true },
    options: { history: true },
    table: () => `StoredItem.keys-${random()}`,
    without: WITHOUT_TRANSACTION,
  },
]

for (const { name, without, ...variant } of VARIANTS) {
  let server: DynamoServer
  let client: DynamoDB

  beforeAll(async () => {
    server = await startDynalite(variant.server)
    client = new DynamoDB(clientConfig(server.endpoint))
  }, 120_000)

  runStoreCases({
    name,
    ...(without === undefined ? {} : { without }),
    open: async (clock) => {
      const table = await server.table(variant.table())
      const cleanUp = async () => void (await client.deleteTable({ TableName: table }))
      return { store: dynamodbStore({ client, table, clock, ...variant.options }), cleanUp }
    },
  })

  afterAll(async () => {
    client.destroy()
    await server.close()
  })
}
