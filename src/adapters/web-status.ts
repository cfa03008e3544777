import type { HttpReply } from '../http/exchange.ts'

/** To HEAD only the head is sent, with the length of what a GET would have got. */
export function forMethod(method: string, reply: HttpReply): HttpReply {
  if (method !== 'HEAD') return reply
  const length = ['Content-Length', String(reply.body.byteLength)] as const
  return { ...reply, headers: [...reply.headers, length], body: new Uint8Array(0) }
}
