import { DynamoDB, type AttributeValue, type DynamoDBClientConfig } from '@aws-sdk/client-dynamodb'
import { once } from 'node:events'
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, onTestFinished } from 'vitest'
import type { Store } from '../../src/core/store.ts'
import { dynamodbStore, type DynamodbStoreOptions } from '../../src/stores/dynamodb/index.ts'
import {
  clientConfig,
  startDynalite,
  type DynaliteOptions,
  type DynamoServer,
} from '../servers/dynalite.ts'

export type Call = 'getItem' | 'putItem' | 'deleteItem' | 'batchGetItem' | 'query'

/** Stands between the store and one call to the service. */
export type Around = (call: {
  readonly name: Call
  readonly input: Record<string, unknown>
  /** Carries the call out. */
  readonly go: () => Promise<object>
}) => Promise<object>

const CALLS: readonly string[] = ['getItem', 'putItem', 'deleteItem', 'batchGetItem', 'query']

/** One server for the file; a fresh, empty table for each test. */
export function useDynamodb(options: DynaliteOptions = {}) {
  let server: DynamoServer
  beforeAll(async () => {
    server = await startDynalite(options)
  }, 120_000)
  afterAll(() => server.close())

  return async () => {
    const table = await server.table()
    const connect = (more: DynamoDBClientConfig = {}): DynamoDB => {
      const client = new DynamoDB({ ...clientConfig(server.endpoint), ...more })
      onTestFinished(() => client.destroy())
      return client
    }
    const client = connect()
    const open = (more: Partial<DynamodbStoreOptions> = {}): Store =>
      dynamodbStore({ client, table, ...more })
    /** Everything in the table, as plain values. */
    const items = async () => {
      const found: Record<string, AttributeValue>[] = []
      let last: Record<string, AttributeValue> | undefined
      do {
        const page = await client.scan({
          TableName: table,
          ConsistentRead: true,
          ExclusiveStartKey: last,
        })
        found.push(...(page.Items ?? []))
        last = page.LastEvaluatedKey
      } while (last !== undefined)
      return found.map((item) =>
        Object.fromEntries(
          Object.entries(item).map(([name, { S, N, B }]) => [name, S ?? B ?? Number(N)]),
        ),
      )
    }
    return { server, table, connect, client, open, items }
  }
}

/** The client with something between it and the store. */
export function around(client: DynamoDB, stand: Around): DynamoDB {
  return new Proxy(client, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name)
      if (typeof value !== 'function') return value
      if (!CALLS.includes(String(name))) return value.bind(target)
      return (input: Record<string, unknown>, ...rest: unknown[]) =>
        stand({
          name: name as Call,
          input,
          go: () => Reflect.apply(value, target, [input, ...rest]) as Promise<object>,
        })
    },
  })
}

/** Counts the calls that a store makes. */
export function counting(client: DynamoDB) {
  const calls: Call[] = []
  const counted = around(client, ({ name, go }) => {
    calls.push(name)
    return go()
  })
  return { counted, calls }
}

/** What befalls a call on its way. */
export type WireFate = 'pass' | 'answer lost' | 'request lost' | 'throttled'

/**
 * A server in front of the service that carries every request out and then, where `loses` says so,
 * cuts the connection instead of answering.
 */
export function losingProxy(endpoint: string, loses: (target: string) => boolean) {
  return faultyProxy(endpoint, (target) => (loses(target) ? 'answer lost' : 'pass'))
}

/**
 * A server in front of the service. `fateOf` is asked about each call with the name of its target
 * and its body. A call that is throttled or lost as a request does not reach the service.
 */
export async function faultyProxy(
  endpoint: string,
  fateOf: (target: string, body: string) => WireFate,
): Promise<string> {
  const { hostname, port } = new URL(endpoint)
  const pass = async (asked: IncomingMessage, answer: ServerResponse) => {
    const { method, headers } = asked
    const body = await bufferOf(asked)
    const target = String(headers['x-amz-target']).split('.').at(-1)!
    const fate = fateOf(target, body.toString())
    if (fate === 'request lost') return void asked.socket.destroy()
    if (fate === 'throttled') return throttle(answer)
    const onward = request({ hostname, port, method, path: asked.url, headers })
    onward.end(body)
    const [reply] = (await once(onward, 'response')) as [IncomingMessage]
    const whole = await bufferOf(reply)
    if (fate === 'answer lost') return void asked.socket.destroy()
    answer.writeHead(reply.statusCode!, reply.headers)
    answer.end(whole)
  }
  const proxy = createServer((asked, answer) => {
    pass(asked, answer).catch(() => void asked.socket.destroy())
  })
  await new Promise<void>((resolve) => {
    proxy.listen(0, '127.0.0.1', resolve)
  })
  onTestFinished(async () => {
    proxy.closeAllConnections()
    await new Promise((resolve) => proxy.close(resolve))
  })
  return `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
}

/** As the service answers where a table has no more capacity. */
function throttle(answer: ServerResponse): void {
  const type = 'com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException'
  answer.writeHead(400, {
    'content-type': 'application/x-amz-json-1.0',
    'x-amzn-requestid': crypto.randomUUID(),
  })
  answer.end(JSON.stringify({ __type: type, message: 'slow down' }))
}

async function bufferOf(message: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of message) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}
