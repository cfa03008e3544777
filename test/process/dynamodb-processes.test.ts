import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { dynamodbStore } from '../../src/stores/dynamodb/index.ts'
import { clientConfig, startDynalite, type DynamoServer } from '../servers/dynalite.ts'
import { startWorker } from './worker-process.ts'

const RACERS = 20
const RACED_KEYS = 1000

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

it('lets 20 processes win each of 1,000 keys once', { timeout: 120_000 }, async () => {
  const table = await server.table()
  const racers = Array.from({ length: RACERS }, () =>
    startWorker('dynamodb-worker.ts', ['race', server.endpoint, table, `${RACED_KEYS}`]),
  )
  await Promise.all(racers.map((racer) => racer.written(1)))
  for (const racer of racers) racer.tell('go')
  const codes = await Promise.all(racers.map((racer) => racer.ended))
  expect(codes).toEqual(racers.map(() => 0))

  const keys = Array.from({ length: RACED_KEYS }, (_, n) => `key-${n}`).toSorted()
  expect(racers.flatMap((racer) => racer.lines.slice(1)).toSorted()).toEqual(keys)
  const store = dynamodbStore({ client, table })
  const completed = await store.list({ state: 'completed', limit: 2 * RACED_KEYS })
  expect(completed.map((view) => view.key).toSorted()).toEqual(keys)
  expect(completed.every((view) => view.attempt === 1)).toBe(true)
})
