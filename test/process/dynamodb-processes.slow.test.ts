// Takes about 51 s.
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { dynamodbStore } from '../../src/stores/dynamodb/index.ts'
import { hold, viewOf } from '../../src/testing/store-cases/store-case.ts'
import { clientConfig, startDynalite, type DynamoServer } from '../servers/dynalite.ts'
import { startWorker } from './worker-process.ts'

const RACERS = 20
const RACED_KEYS = 1000
/** Long enough for renewals in time on a busy machine. */
const HELD_MS = 2000

let server: DynamoServer
let client: DynamoDB

beforeAll(async () => {
  server = await startDynalite({ returnsItems: true })
  client = new DynamoDB(clientConfig(server.endpoint))
}, 120_000)

afterAll(async () => {
  client.destroy()
  await server.close()
})

it('gives each of 1,000 keys to one of 20 DynamoDB processes', { timeout: 120_000 }, async () => {
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

// The process is stopped for longer than a lease, continues, and must not trust its own count.
it('takes no key from a living holder after the claiming process was stopped', async () => {
  const table = await server.table()
  const store = dynamodbStore({ client, table })
  const lease = await hold(store, { leaseMs: HELD_MS, onLapse: 'rerun' })
  const renewing = new AbortController()
  const renewals = (async () => {
    while (!renewing.signal.aborted) {
      expect(await store.renew([{ ...lease, leaseMs: HELD_MS }])).toEqual([true])
      await new Promise((resolve) => setTimeout(resolve, HELD_MS / 20))
    }
  })()
  const args = ['covet', server.endpoint, table, `${HELD_MS}`]
  const rival = startWorker('dynamodb-worker.ts', args)
  await rival.written(2)
  const pid = Number(rival.lines[0])
  process.kill(pid, 'SIGSTOP')
  await new Promise((resolve) => setTimeout(resolve, 1.2 * HELD_MS))
  process.kill(pid, 'SIGCONT')
  await new Promise((resolve) => setTimeout(resolve, HELD_MS / 4))
  expect(rival.lines.slice(1)).toEqual(['in_progress'])
  // Once the holder stops renewing, the process gets the key.
  renewing.abort()
  await renewals
  await rival.written(3)
  expect(rival.lines.slice(1)).toEqual(['in_progress', 'claimed'])
  expect((await viewOf(store, lease)).attempt).toBe(2)
})
