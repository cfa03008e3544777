/** A Node server for handlers of web-standard requests, as the runtimes do it for theirs. */
import type http from 'node:http'
import { Readable } from 'node:stream'
import type { ReadableStream } from 'node:stream/web'
import { serve, type TestServer } from './run-express.ts'

export type WebHandlerFunction = (request: Request) => Response | Promise<Response>

export function serveWeb(handler: WebHandlerFunction): Promise<TestServer> {
  return serve((req, res) => {
    answer(handler, req, res).catch((error: unknown) => {
      // What a runtime does with a handler that throws.
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
  for await (const chunk of response.body as ReadableStream<Uint8Array>) res.write(chunk)
  res.end()
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
