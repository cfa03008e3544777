/** Sends exactly what a case asks for, and hides nothing of what comes back. */
import http from 'node:http'

export interface Send {
  readonly port: number
  /** @default 'POST' */
  readonly method?: string
  /** @default '/payments' */
  readonly path?: string
  readonly key?: string
  /** @default 'tenant-1' */
  readonly tenant?: string
  readonly headers?: http.OutgoingHttpHeaders
  /** Sent as JSON. */
  readonly json?: unknown
  readonly body?: string | Uint8Array
}

export interface Received {
  readonly status: number
  /** Lower-case names; several lines of one header are joined by commas. */
  readonly headers: Readonly<Record<string, string | undefined>>
  readonly body: Buffer
  readonly text: string
}

/** What cases take for the tenant of a request. */
export const TENANT_HEADER = 'x-tenant'

export function send(request: Send): Promise<Received> {
  return new Promise((resolve, reject) => {
    const { port, method = 'POST', path = '/payments' } = request
    const options = { host: '127.0.0.1', port, method, path, headers: headersOf(request) }
    const sent = http.request(options)
    sent.on('error', reject)
    sent.on('response', (response) => {
      const chunks: Buffer[] = []
      response.on('data', (chunk: Buffer) => chunks.push(chunk))
      response.on('error', reject)
      response.on('end', () => resolve(received(response, Buffer.concat(chunks))))
    })
    sent.end(request.json === undefined ? request.body : JSON.stringify(request.json))
  })
}

function headersOf({ key, tenant = 'tenant-1', json, headers }: Send): http.OutgoingHttpHeaders {
  return {
    [TENANT_HEADER]: tenant,
    ...(key === undefined ? {} : { 'Idempotency-Key': key }),
    ...(json === undefined ? {} : { 'Content-Type': 'application/json' }),
    ...headers,
  }
}

function received(response: http.IncomingMessage, body: Buffer): Received {
  const headers = Object.fromEntries(
    Object.entries(response.headers).map(([name, value]) => [name, value?.toString()]),
  )
  return { status: response.statusCode!, headers, body, text: body.toString() }
}
