import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'
import type { EffectRequest, ProviderEffect } from '../../examples/provider/contract.ts'

/** What the provider got, and how it may answer. */
export interface Call {
  readonly key: string
  readonly request: EffectRequest
  readonly res: ServerResponse
  /** What it would say that it has done. */
  readonly effect: ProviderEffect
}

export interface FakeProvider {
  readonly url: string
  /** All that were sent, in order. */
  readonly calls: readonly Call[]
  /** What becomes of the next ones. */
  onSend: (call: Call) => void
  /** What it says about a key; the call is there if it came with one. */
  onFind: (res: ServerResponse, call: Call | undefined) => void
  readonly close: () => void
}

export function answer(res: ServerResponse, status: number, body: unknown): void {
  res.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body))
}

/** It has done what was sent, whatever it has answered. */
export function findIt(res: ServerResponse, call: Call | undefined): void {
  if (call === undefined) findNothing(res)
  else answer(res, 200, call.effect)
}

export function findNothing(res: ServerResponse): void {
  answer(res, 404, { error: { code: 'not_found' } })
}

/** A provider that does exactly what its test says, and knows of nothing unless it is told. */
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
    onFind: findNothing,
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
