import type { IncomingMessage, ServerResponse } from 'node:http'
import { realSocketOf } from './held-socket.ts'

type Socket = IncomingMessage['socket']

/** Whether a connection tells at this moment that it is closed: of those that are watched. */
const CLOSING = new WeakMap<Socket, boolean>()

/**
 * Tells whether the client is leaving at this moment. Several requests may come over a connection
 * before the first is answered, and the replies of the others have no socket until then. When the
 * client goes, Node destroys these as a handler would that gives its reply up: all that tells the
 * two apart is when it happens.
 */
export function leavingClient(res: ServerResponse): () => boolean {
  if (res.socket) return never
  const socket: Socket | null | undefined = realSocketOf(res.req)
  // There is none where a framework is asked without a server, by its tests.
  if (!socket) return never
  const isClosing = () => CLOSING.get(socket) === true
  // Once for each connection, however many requests it brings.
  if (CLOSING.has(socket)) return isClosing
  CLOSING.set(socket, false)
  // Before the server's own listener, which was there first.
  socket.prependOnceListener('close', () => {
    CLOSING.set(socket, true)
    process.nextTick(() => CLOSING.set(socket, false))
  })
  return isClosing
}

function never(): boolean {
  return false
}
