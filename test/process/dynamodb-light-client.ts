/**
 * A client with only the functions that the store uses. Twenty processes that each load the SDK,
 * and sign and check every call, would be too slow.
 */
import { Agent, request } from 'node:http'
import type { DynamodbClient, Handler, Item, Middleware } from '../../src/stores/dynamodb/client.ts'

interface RawResponse {
  readonly response: {
    readonly statusCode: number
    readonly headers: Readonly<Record<string, unknown>>
    readonly text: string
  }
}

export interface LightClient extends DynamodbClient {
  destroy(): void
}

/** The service requires this header; test servers do not check the signature. */
const AUTHORIZATION =
  'AWS4-HMAC-SHA256 Credential=test/20260101/eu-central-1/dynamodb/aws4_request, ' +
  'SignedHeaders=host;x-amz-date;x-amz-target, Signature=0'

export function lightClient(endpoint: string): LightClient {
  const agent = new Agent({ keepAlive: true })
  const middlewares: Middleware[] = []
  const call = (target: string) => async (input: object) => {
    const body = toWire(input)
    const send = () => post({ endpoint, agent, target, body })
    const handler = middlewares.reduce<Handler>((next, wrap) => wrap(next), send)
    const { response } = (await withRetry(() => handler(undefined as never))) as RawResponse
    const answer = fromWire(response.text)
    if (response.statusCode === 200) return answer
    const name = String(answer.__type).split('#').at(-1)
    throw Object.assign(new Error(answer.message), { name, Item: answer.Item })
  }
  return {
    getItem: call('GetItem'),
    putItem: call('PutItem'),
    deleteItem: call('DeleteItem'),
    batchGetItem: call('BatchGetItem'),
    query: call('Query'),
    middlewareStack: { add: (middleware) => void middlewares.push(middleware) },
    destroy: () => agent.destroy(),
  }
}

interface Post {
  readonly endpoint: string
  readonly agent: Agent
  readonly target: string
  readonly body: string
}

/** Retries like the SDK: the server may close a connection at the moment it is reused. */
async function withRetry<Answer>(call: () => Promise<Answer>): Promise<Answer> {
  for (let tries = 1; ; tries++) {
    try {
      return await call()
    } catch (error) {
      if (tries === 5) throw error
    }
  }
}

function post({ endpoint, agent, target, body }: Post): Promise<RawResponse> {
  const headers = {
    'content-type': 'application/x-amz-json-1.0',
    'x-amz-target': `DynamoDB_20120810.${target}`,
    'x-amz-date': '20260101T000000Z',
    authorization: AUTHORIZATION,
  }
  return new Promise((resolve, reject) => {
    const sent = request(endpoint, { agent, method: 'POST', headers }, (answer) => {
      const chunks: Buffer[] = []
      answer.on('data', (chunk: Buffer) => chunks.push(chunk))
      answer.on('error', reject)
      answer.on('end', () => {
        const text = Buffer.concat(chunks).toString()
        resolve({ response: { statusCode: answer.statusCode!, headers: answer.headers, text } })
      })
    })
    sent.on('error', reject)
    sent.end(body)
  })
}

/** Bytes are sent as base64 in `B`. Skips the conversion of input without bytes. */
function toWire(input: object): string {
  const item = 'Item' in input ? (input.Item as Item) : {}
  const hasBytes = Object.values(item).some((attribute) => 'B' in attribute)
  return hasBytes ? JSON.stringify(input, bytesToBase64) : JSON.stringify(input)
}

function bytesToBase64(name: string, value: unknown): unknown {
  return name === 'B' ? Buffer.from(value as Uint8Array).toString('base64') : value
}

function fromWire(text: string) {
  return text.includes('"B":') ? JSON.parse(text, base64ToBytes) : JSON.parse(text)
}

function base64ToBytes(name: string, value: unknown): unknown {
  return name === 'B' ? new Uint8Array(Buffer.from(value as string, 'base64')) : value
}
