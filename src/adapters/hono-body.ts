import type { Context } from 'hono'
import { InvalidRequestError } from '../core/errors.ts'
import type { ExchangeBody } from '../http/exchange.ts'
import { readRequest } from './web-body.ts'

/** The body as it was sent; or, where a middleware before us has read it, as Hono has kept it. */
export async function readBody(c: Context, bytesMax: number): Promise<ExchangeBody> {
  const { raw, bodyCache } = c.req
  if (!raw.bodyUsed) return readRequest(raw, bytesMax)
  const { arrayBuffer, blob, text, json } = bodyCache as Readonly<Record<string, unknown>>
  if (arrayBuffer !== undefined) return sized(await (arrayBuffer as Promise<ArrayBuffer>), bytesMax)
  if (blob !== undefined)
    return sized(await (await (blob as Promise<Blob>)).arrayBuffer(), bytesMax)
  if (text !== undefined) {
    return sized(new TextEncoder().encode(await (text as Promise<string>)).buffer, bytesMax)
  }
  if (json !== undefined) return { kind: 'value', value: await json }
  throw new InvalidRequestError(
    'the body was read before idempotency() as a form, or from c.req.raw, and cannot be compared ' +
      'with a retry: mount idempotency() before whatever reads it',
  )
}

function sized(buffer: ArrayBuffer, bytesMax: number): ExchangeBody {
  if (buffer.byteLength > bytesMax) return { kind: 'too_large' }
  return { kind: 'bytes', bytes: new Uint8Array(buffer) }
}
