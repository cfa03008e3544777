import { DynamoDB, type AttributeValue, type DynamoDBClientConfig } from '@aws-sdk/client-dynamodb'
import { once } from 'node:events'
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, onTestFinished } from 'vitest'
import type { Store } from '../../../src/core/store/store.ts'
import { dynamodbStore, type DynamodbStoreOptions } from '../../../src/stores/dynamodb/index.ts'
import {
  clientConfig,
  startDynalite,
  type DynaliteOptions,
  type DynamoServer,
} from '../../servers/dynalite.ts'

export type Call = 'getItem' | 'putItem' | 'deleteItem' | 'batchGetItem' | 'query'

/** Wraps one call of the store to the service. */
export type Around = (call: {
  readonly name: Call
  readonly input: Record<string, unknown>
  /** Sends the call to the service. */
  readonly go: () => Promise<object>
}) => Promise<object>

const CALLS: readonly string[] = ['getItem', 'putItem', 'deleteItem', 'batchGetItem', 'query']

/** Starts one server for the file. Each call of the returned function creates an empty table. */
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
    /** All items of the table, as plain values. */
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

/** The client, with its calls wrapped by `wrap`. */
export function around(client: DynamoDB, wrap: Around): DynamoDB {
  return new Proxy(client, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name)
      if (typeof value !== 'function') return value
      if (!CALLS.includes(String(name))) return value.bind(target)
      return (input: Record<string, unknown>, ...rest: unknown[]) =>
        wrap({
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

/** What happens to a call on the network. */
export type WireFate = 'pass' | 'answer lost' | 'request lost' | 'throttled'

/**
 * A proxy that passes every request on to the service. If `loses` returns true, it then closes the
 * connection instead of answering.
 */
export function losingProxy(endpoint: string, loses: (target: string) => boolean) {
  return faultyProxy(endpoint, (target) => (loses(target) ? 'answer lost' : 'pass'))
}

/**
 * A proxy in front of the service. `fateOf` decides about each call by the name of its target and
 * its body. A call that is throttled, or whose request is lost, does not reach the service.
 */
export async function faultyProxy(
  endpoint: string,
  fateOf: (target: string, body: string) => WireFate,
): Promise<string> {
  const { hostname, port } = new URL(endpoint)
  const pass = async (incoming: IncomingMessage, answer: ServerResponse) => {
    const { method, headers } = incoming
    const body = await bufferOf(incoming)
    const target = String(headers['x-amz-target']).split('.').at(-1)!
    const fate = fateOf(target, body.toString())
    if (fate === 'request lost') return void incoming.socket.destroy()
    if (fate === 'throttled') return throttle(answer)
    const onward = request({ hostname, port, method, path: incoming.url, headers })
    onward.end(body)
    const [reply] = (await once(onward, 'response')) as [IncomingMessage]
    const whole = await bufferOf(reply)
    if (fate === 'answer lost') return void incoming.socket.destroy()
    answer.writeHead(reply.statusCode!, reply.headers)
    answer.end(whole)
  }
  const proxy = createServer((incoming, answer) => {
    pass(incoming, answer).catch(() => void incoming.socket.destroy())
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

/** Answers like the service when a table has no capacity left. */
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
