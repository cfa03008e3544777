import type { Context } from 'hono'
import { InvalidRequestError } from '../core/errors.ts'
import type { ExchangeBody } from '../http/exchange.ts'
import { readIncoming } from './hono-node.ts'
import { readRequest } from './web-body.ts'

/** What was read by `c.req` stays there, as a promise. */
interface Cached {
  readonly arrayBuffer?: Promise<ArrayBuffer>
  readonly blob?: Promise<Blob>
  readonly text?: Promise<string>
  /** Of older versions; newer ones keep the text. */
  readonly json?: Promise<unknown>
}

/** The body as it was sent; or, where somebody else has read it, as Hono has kept it. */
export async function readBody(c: Context, bytesMax: number): Promise<ExchangeBody> {
  const { raw } = c.req
  if (raw.bodyUsed) return readCached(c, bytesMax)
  const beneath = readIncoming(c, bytesMax)
  if (beneath === undefined) return readRequest(raw, bytesMax)
  return (await beneath) ?? readCached(c, bytesMax)
}

async function readCached({ req }: Context, bytesMax: number): Promise<ExchangeBody> {
  const { arrayBuffer, blob, text, json } = req.bodyCache as unknown as Cached
  if (arrayBuffer !== undefined) return sized(await arrayBuffer, bytesMax)
  if (blob !== undefined) return sized(await (await blob).arrayBuffer(), bytesMax)
  if (text !== undefined) return sized(new TextEncoder().encode(await text).buffer, bytesMax)
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
