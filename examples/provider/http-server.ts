import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { ProviderError } from './contract.ts'

export interface HttpServer {
  listen(port: number, host: string): Promise<string>
  /** Takes no new requests and waits for those in progress, even if their clients disconnected. */
  close(): Promise<void>
}

export type Answer = (req: IncomingMessage, res: ServerResponse) => Promise<void>

/** The time for slow bodies; everything else ends at once. */
const GRACE_MS = 2_000
const CONNECTIONS_MAX = 10_000
const HEADERS_MAX_MS = 10_000
const REQUEST_MAX_MS = 30_000

export function createHttpServer(answer: Answer): HttpServer {
  const underWay = new Set<Promise<void>>()
  const server = createServer({ headersTimeout: HEADERS_MAX_MS, requestTimeout: REQUEST_MAX_MS })
  server.maxConnections = CONNECTIONS_MAX
  server.on('clientError', refuseUnreadable)
  server.on('request', (req, res) => {
    const ended = answer(req, res).finally(() => underWay.delete(ended))
    underWay.add(ended)
    // During shutdown, a keep-alive connection ends with its answer.
    res.once('close', () => {
      if (!server.listening) server.closeIdleConnections()
    })
  })
  return {
    listen: (port, host) => listen(server, port, host),
    async close() {
      if (server.listening) await stop(server)
      await Promise.all(underWay)
    },
  }
}

async function listen(server: Server, port: number, host: string): Promise<string> {
  server.listen(port, host)
  try {
    await once(server, 'listening')
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EADDRINUSE') {
      throw new Error(`Port ${port} is in use; set PORT to another one, or to 0 for any.`, {
        cause: error,
      })
    }
    throw error
  }
  const name = host.includes(':') ? `[${host}]` : host
  return `http://${name}:${(server.address() as AddressInfo).port}`
}

async function stop(server: Server): Promise<void> {
  const closed = once(server, 'close')
  server.close()
  const inTime = new AbortController()
  const late = sleep(GRACE_MS, undefined, { signal: inTime.signal }).then(
    () => server.closeAllConnections(),
    () => undefined,
  )
  await closed
  inTime.abort()
  await late
}

/** Answers a request that is not HTTP, or too large. */
function refuseUnreadable(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy()
    return
  }
  const isTooLarge = error.code === 'HPE_HEADER_OVERFLOW'
  const status = isTooLarge ? '431 Request Header Fields Too Large' : '400 Bad Request'
  const message = isTooLarge ? 'The headers are too large.' : 'This is not an HTTP request.'
  const body: ProviderError = { error: { code: 'invalid_request', message } }
  const text = JSON.stringify(body)
  const headers = `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}`
  socket.end(`HTTP/1.1 ${status}\r\nConnection: close\r\n${headers}\r\n\r\n${text}`)
}
