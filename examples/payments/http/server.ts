import { once } from 'node:events'
import type { RequestListener, Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { GRACE_MS } from '../grace.ts'
import { createLimitedServer } from './limited-server.ts'
import type { Settings } from '../settings.ts'

export interface HttpServer {
  readonly port: number
  /** Serves requests from now on. Before that, every request gets a 503. */
  serve(listener: RequestListener): void
  /** Takes no new connections, and lets requests in progress end. */
  drain(): Promise<void>
  /** Cuts the remaining connections. */
  close(): void
}

/** Listens at once, so that the port is known before the service is ready. */
export async function openServer({
  port,
  requestTimeoutMs,
}: Pick<Settings, 'port' | 'requestTimeoutMs'>): Promise<HttpServer> {
  let listener: RequestListener = answerStarting
  const server = createLimitedServer((req, res) => listener(req, res), {
    requestMs: requestTimeoutMs,
  })
  endKeptConnections(server)
  await listen(server, port)
  return {
    port: (server.address() as AddressInfo).port,
    serve(next) {
      listener = next
    },
    async drain() {
      const closed = once(server, 'close')
      server.close()
      await Promise.race([closed, sleep(GRACE_MS, undefined, { ref: false })])
    },
    close: () => server.closeAllConnections(),
  }
}

const answerStarting: RequestListener = (_req, res) => {
  res.writeHead(503, { 'Retry-After': '1', 'Content-Type': 'application/json' })
  res.end('{"status":"starting"}')
}

/** During shutdown, a keep-alive connection ends with its reply. */
function endKeptConnections(server: Server): void {
  server.on('request', (_req, res) => {
    res.once('close', () => {
      if (!server.listening) server.closeIdleConnections()
    })
  })
}

async function listen(server: Server, port: number): Promise<void> {
  server.listen(port)
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
}
