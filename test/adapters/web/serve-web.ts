/** Serves web-standard handlers and Hono apps with a Node server. */
import type http from 'node:http'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ReadableStream } from 'node:stream/web'
import { getRequestListener } from '@hono/node-server'
import { serve, type TestServer } from '../run-express.ts'

/** Serves a Hono app with `@hono/node-server`, as most apps on Node do. */
export function serveHono(app: {
  fetch(request: Request, env?: unknown): Response | Promise<Response>
}): Promise<TestServer> {
  const listener = getRequestListener((request, env) => app.fetch(request, env))
  return serve((req, res) => void listener(req, res))
}

export type WebHandlerFunction = (request: Request) => Response | Promise<Response>

export function serveWeb(handler: WebHandlerFunction): Promise<TestServer> {
  return serve((req, res) => {
    answer(handler, req, res).catch((error: unknown) => {
      // Runtimes do the same when a handler throws.
      if (res.headersSent) res.destroy()
      else res.writeHead(500).end(String(error))
    })
  })
}

async function answer(
  handler: WebHandlerFunction,
  req: http.IncomingMessage,
  res: http.ServerResponse,
): Promise<void> {
  const response = await handler(toRequest(req))
  res.statusCode = response.status
  if (response.statusText !== '') res.statusMessage = response.statusText
  for (const [name, value] of response.headers) res.appendHeader(name, value)
  if (response.body === null) return void res.end()
  res.flushHeaders()
  // A client that disconnects cancels the body, and a slow client slows it down.
  await pipeline(Readable.fromWeb(response.body as ReadableStream<Uint8Array>), res)
}

function toRequest(req: http.IncomingMessage): Request {
  const headers = new Headers()
  for (let i = 0; i + 1 < req.rawHeaders.length; i += 2) {
    headers.append(req.rawHeaders[i]!, req.rawHeaders[i + 1]!)
  }
  const { method = 'GET' } = req
  const { 'content-length': length, 'transfer-encoding': encoding } = req.headers
  const hasBody = encoding !== undefined || (length !== undefined && length !== '0')
  const body = hasBody
    ? { body: Readable.toWeb(req) as globalThis.ReadableStream, duplex: 'half' as const }
    : {}
  return new Request(`http://localhost${req.url ?? '/'}`, { method, headers, ...body })
}
