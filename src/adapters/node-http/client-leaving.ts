import type { ServerResponse } from 'node:http'
import { realSocketOf, type Socket } from './live-socket.ts'

/** Watched connections. `true` while a connection emits `close`. */
const CLOSING = new WeakMap<Socket, boolean>()

/**
 * Returns a check of whether the client is leaving at this moment. With pipelining, several
 * requests arrive on a connection before the first is answered, and the later responses have no
 * socket until then. When the client leaves, Node destroys these responses as a handler would.
 * Only the moment distinguishes the two.
 */
export function clientLeavingCheck(res: ServerResponse): () => boolean {
  if (res.socket) return never
  const socket: Socket | null | undefined = realSocketOf(res.req)
  // Test tools such as `inject` of Fastify call an app without a connection.
  if (!socket) return never
  const isClosing = () => CLOSING.get(socket) === true
  // One listener for each connection, not for each request.
  if (CLOSING.has(socket)) return isClosing
  CLOSING.set(socket, false)
  // Prepended, so that it runs before the listener of the server, which destroys the responses.
  socket.prependOnceListener('close', () => {
    CLOSING.set(socket, true)
    process.nextTick(() => CLOSING.set(socket, false))
  })
  return isClosing
}

function never(): boolean {
  return false
}
