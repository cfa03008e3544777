import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'
import type { EffectRequest, ProviderEffect } from '../../../examples/provider/contract.ts'

/** A request that the provider got. */
export interface Call {
  readonly key: string
  readonly request: EffectRequest
  readonly res: ServerResponse
  /** The effect that the provider would report. */
  readonly effect: ProviderEffect
}

export interface FakeProvider {
  readonly url: string
  /** All requests, in order. */
  readonly calls: readonly Call[]
  /** Answers the next requests. */
  onSend: (call: Call) => void
  /** Answers a query for a key. `call` is the request with that key, if any. */
  onFind: (res: ServerResponse, call: Call | undefined) => void
  readonly close: () => void
}

export function answer(res: ServerResponse, status: number, body: unknown): void {
  res.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body))
}

/** Reports the effect as done, with any earlier answer. */
export function answerFound(res: ServerResponse, call: Call | undefined): void {
  if (call === undefined) answerNotFound(res)
  else answer(res, 200, call.effect)
}

export function answerNotFound(res: ServerResponse): void {
  answer(res, 404, { error: { code: 'not_found' } })
}

/** A provider that its test controls. By default it knows no effect. */
export async function startFakeProvider(): Promise<FakeProvider> {
  const calls: Call[] = []
  const server = createServer((req, res) => {
    const url = new URL(req.url!, 'http://provider')
    if (req.method === 'GET') {
      const asked = url.searchParams.get('key')
      const call = calls.find(({ key }) => key === asked)
      fake.onFind(res, call)
      return
    }
    void json(req).then((body) => {
      const request = body as EffectRequest
      const key = String(req.headers['idempotency-key'])
      const call = { key, request, res, effect: effectOf(url.pathname, key, request) }
      calls.push(call)
      fake.onSend(call)
    })
  })
  const fake = {
    url: '',
    calls,
    onSend: ({ res, effect }: Call) => answer(res, 201, effect),
    onFind: answerNotFound,
    close: () => undefined,
  } as { -readonly [Name in keyof FakeProvider]: FakeProvider[Name] }
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  fake.close = () => {
    server.close()
    server.closeAllConnections()
  }
  fake.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return fake
}

function effectOf(path: string, key: string, request: EffectRequest): ProviderEffect {
  const kind = path.slice(1, -1) as ProviderEffect['kind']
  const createdAt = new Date().toISOString()
  return { ...request, id: `fake_${key}`, kind, status: 'succeeded', key, sequence: 1, createdAt }
}
