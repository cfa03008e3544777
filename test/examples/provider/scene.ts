import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { onTestFinished } from 'vitest'
import { SIGNATURE_HEADER, type ProviderEvent } from '../../../examples/provider/contract.ts'
import {
  createProvider,
  type Provider,
  type ProviderOptions,
} from '../../../examples/provider/provider.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'

export const SECRET = 'whsec_test'

export const CHARGE = { amountCents: 1250, currency: 'USD', reference: 'pay-7', account: 'cus_1' }

export interface Answer {
  /** The HTTP status. 0 means that the connection was cut. */
  readonly status: number
  readonly headers: Headers
  // oxlint-disable-next-line typescript/no-explicit-any
  readonly body: any
}

/** A data folder for one test. */
export function dataFolder(): string {
  const scratch = scratchFolder()
  onTestFinished(scratch.remove)
  return scratch.file('data')
}

/** Starts a provider that ends with the test. Errors that no client sees fail the test. */
export async function startProvider(
  options: Partial<ProviderOptions> = {},
): Promise<Provider & Client> {
  const errors: unknown[] = []
  const folder = options.dataFolder ?? dataFolder()
  const onError = (error: unknown) => errors.push(error)
  const provider = await createProvider({ onError, ...options, dataFolder: folder })
  onTestFinished(async () => {
    await provider.close()
    if (errors.length > 0) throw new AggregateError(errors, 'the provider failed')
  })
  return { ...provider, ...clientOf(provider.url) }
}

export interface Client {
  post(path: string, key: string, body?: unknown): Promise<Answer>
  get(path: string): Promise<Answer>
}

export function clientOf(url: string): Client {
  const ask = async (path: string, init: RequestInit): Promise<Answer> => {
    try {
      const response = await fetch(`${url}${path}`, init)
      return {
        status: response.status,
        headers: response.headers,
        body: await response.json(),
      }
    } catch {
      return { status: 0, headers: new Headers(), body: undefined }
    }
  }
  return {
    post: (path, key, body = CHARGE) =>
      ask(path, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key },
        body: JSON.stringify(body),
      }),
    get: (path) => ask(path, {}),
  }
}

export interface Received {
  readonly event: ProviderEvent
  readonly body: string
  readonly signature: string | undefined
}

export interface Receiver {
  readonly url: string
  readonly received: readonly Received[]
  /** Resolves when the received webhooks satisfy `isEnough`. */
  until(isEnough: (received: readonly Received[]) => boolean): Promise<void>
}

/** Receives webhooks. `answer` returns the status of each; 'never' sends no answer. */
export async function startReceiver(
  answer: (count: number) => number | 'never' = () => 200,
): Promise<Receiver> {
  const received: Received[] = []
  const watchers = new Set<() => void>()
  const server = createServer((req, res) => {
    void readText(req).then((body) => {
      const signature = req.headers[SIGNATURE_HEADER] as string | undefined
      received.push({ event: JSON.parse(body) as ProviderEvent, body, signature })
      const status = answer(received.length)
      if (status !== 'never') res.writeHead(status, { Location: '/elsewhere' }).end()
      for (const look of [...watchers]) look()
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(async () => {
    const closed = once(server, 'close')
    server.close()
    server.closeAllConnections()
    await closed
  })
  const until: Receiver['until'] = (isEnough) =>
    new Promise((resolve) => {
      const look = () => {
        if (!isEnough(received)) return
        watchers.delete(look)
        resolve()
      }
      watchers.add(look)
      look()
    })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`, received, until }
}

async function readText(req: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of req.setEncoding('utf8')) text += String(chunk)
  return text
}
