import type { Context } from 'hono'
import { InvalidRequestError } from '../../core/errors.ts'
import type { ExchangeBody } from '../../http/guard/exchange.ts'
import { readIncoming } from './node-server-body.ts'
import { readRequest } from '../web/body.ts'

/** The promises of `c.req.json()` and the like, which Hono keeps. */
interface BodyCache {
  readonly arrayBuffer?: Promise<ArrayBuffer>
  readonly blob?: Promise<Blob>
  readonly text?: Promise<string>
  /** In older versions of Hono. Newer ones keep the text. */
  readonly json?: Promise<unknown>
}

/** The body as it was sent. If other code has read it before, the copy that Hono has kept. */
export async function readBody(c: Context, bytesMax: number): Promise<ExchangeBody> {
  const { raw } = c.req
  if (raw.bodyUsed) return readCached(c, bytesMax)
  const incoming = readIncoming(c, bytesMax)
  if (incoming === undefined) return readRequest(raw, bytesMax)
  return (await incoming) ?? readCached(c, bytesMax)
}

async function readCached({ req }: Context, bytesMax: number): Promise<ExchangeBody> {
  const { arrayBuffer, blob, text, json } = req.bodyCache as unknown as BodyCache
  if (arrayBuffer !== undefined) return withinLimit(await arrayBuffer, bytesMax)
  if (blob !== undefined) return withinLimit(await (await blob).arrayBuffer(), bytesMax)
  if (text !== undefined) return withinLimit(new TextEncoder().encode(await text).buffer, bytesMax)
  if (json !== undefined) return { kind: 'value', value: await json }
  throw new InvalidRequestError(
    'the body was read before idempotency() as a form, or from c.req.raw, and cannot be compared ' +
      'with a retry: mount idempotency() before the middleware that reads the body',
  )
}

function withinLimit(buffer: ArrayBuffer, bytesMax: number): ExchangeBody {
  if (buffer.byteLength > bytesMax) return { kind: 'too_large' }
  return { kind: 'bytes', bytes: new Uint8Array(buffer) }
}
