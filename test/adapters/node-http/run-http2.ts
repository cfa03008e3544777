/** HTTP/2 servers on the loopback, with the compatibility API of Node, and a client for them. */
import { once } from 'node:events'
import type http from 'node:http'
import http2 from 'node:http2'
import type { AddressInfo } from 'node:net'
import { onTestFinished } from 'vitest'

export interface Http2Reply {
  readonly status: number
  readonly headers: http2.IncomingHttpHeaders
  readonly body: string
}

export interface Http2Server {
  /** Sends a POST with the key `k` and a JSON body. */
  send(path?: string): Promise<Http2Reply>
}

export async function serveHttp2(listener: http.RequestListener): Promise<Http2Server> {
  const server = http2.createServer(listener as never)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => void server.close())
  return http2Client((server.address() as AddressInfo).port)
}

export function http2Client(port: number): Http2Server {
  const session = http2.connect(`http://127.0.0.1:${port}`)
  onTestFinished(() => session.destroy())
  return { send: (path = '/') => send(session, path) }
}

async function send(session: http2.ClientHttp2Session, path: string): Promise<Http2Reply> {
  const stream = session.request({
    ':method': 'POST',
    ':path': path,
    'content-type': 'application/json',
    'idempotency-key': 'k',
  })
  stream.end('{"amount":1}')
  const [headers] = (await once(stream, 'response')) as [
    http2.IncomingHttpHeaders & http2.IncomingHttpStatusHeader,
  ]
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(chunk as Buffer)
  return { status: headers[':status']!, headers, body: Buffer.concat(chunks).toString() }
}
