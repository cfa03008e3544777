import type { HttpReply } from '../../http/guard/exchange.ts'

/** For HEAD, removes the body and adds the length that a GET would get. */
export function forMethod(method: string, reply: HttpReply): HttpReply {
  if (method !== 'HEAD') return reply
  const length = ['Content-Length', String(reply.body.byteLength)] as const
  return { ...reply, headers: [...reply.headers, length], body: new Uint8Array(0) }
}
