import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { afterAll, beforeAll } from 'vitest'
import { dynamodbStore } from '../../src/stores/dynamodb/index.ts'
import { clientConfig, startDynalite, type DynamoServer } from '../servers/dynalite.ts'
import { runStoreCases } from './run-store-cases.ts'

const WITHOUT_TRANSACTION = {
  transaction: 'it has no transaction that a handler could hold open while it works',
}

let server: DynamoServer
let client: DynamoDB

beforeAll(async () => {
  server = await startDynalite()
  client = new DynamoDB(clientConfig(server.endpoint))
}, 120_000)

afterAll(async () => {
  client.destroy()
  await server.close()
})

runStoreCases({
  name: 'dynamodb',
  without: {
    ...WITHOUT_TRANSACTION,
    history: 'it was not asked for, so that expired records are removed',
  },
  open: async (clock) => {
    const table = await server.table()
    const cleanUp = async () => void (await client.deleteTable({ TableName: table }))
    return { store: dynamodbStore({ client, table, clock }), cleanUp }
  },
})

runStoreCases({
  name: 'dynamodb, with a history, under another kind of name',
  without: WITHOUT_TRANSACTION,
  open: async (clock) => {
    const table = await server.table(`Kept.keys-${crypto.randomUUID().slice(0, 8)}`)
    const cleanUp = async () => void (await client.deleteTable({ TableName: table }))
    return { store: dynamodbStore({ client, table, clock, history: true }), cleanUp }
  },
})
