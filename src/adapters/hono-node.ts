/**
 * Hono on Node, by way of `@hono/node-server`: its requests are light until somebody asks for a
 * stream. Asking costs more than all else that we do, so bodies are read from what lies beneath,
 * where everything is as we know it; and the usual way wherever it is not.
 */
import type { Context } from 'hono'
import type { ExchangeBody } from '../http/exchange.ts'

/** The part of Node's request that is used. */
interface Incoming {
  /** What the server takes for the body where somebody has read it before. */
  rawBody?: Buffer
  readonly httpVersionMajor: number
  readonly headers: { readonly 'content-length'?: string }
  readonly complete: boolean
  readonly destroyed: boolean
  readonly readableDidRead: boolean
  readonly readableEncoding: string | null
  read(): Buffer | null
  on(event: 'readable' | 'close' | 'error', listener: () => void): unknown
  off(event: 'readable' | 'close' | 'error', listener: () => void): unknown
  listenerCount(event: string): number
}

/**
 * The body, read once and left for whoever reads the request next. `undefined` where the request
 * must be read the usual way; by promise, where somebody else has read it meanwhile.
 */
export function readIncoming(
  c: Context,
  bytesMax: number,
): Promise<ExchangeBody | undefined> | undefined {
  const incoming = untouched(c)
  if (incoming === undefined) return undefined
  // The parser holds the client to the length that it has sent.
  const length = Number(incoming.headers['content-length'])
  if (!(length > 0 && length <= bytesMax)) return undefined
  return incoming.destroyed ? undefined : readWhole(c, incoming, length)
}

/** The request beneath, where nobody has read it or begun to. */
function untouched(c: Context): Incoming | undefined {
  const { incoming } = (c.env ?? {}) as { readonly incoming?: Incoming }
  if (incoming?.httpVersionMajor !== 1 || incoming.rawBody !== undefined) return undefined
  if (incoming.readableDidRead || incoming.readableEncoding !== null) return undefined
  if (incoming.listenerCount('data') > 0 || incoming.listenerCount('readable') > 0) return undefined
  return isLight(c.req.raw, incoming) ? incoming : undefined
}

/** What a light request keeps until it is read. Anything else may be a stream that was begun. */
const LIGHT = new Set(['incomingKey', 'methodKey', 'urlKey', 'headersKey', 'abortControllerKey'])

function isLight(request: Request, incoming: Incoming): boolean {
  const symbols = Object.getOwnPropertySymbols(request)
  let isOf = false
  for (const symbol of symbols) {
    const { description = '' } = symbol
    if (!LIGHT.has(description)) return false
    isOf ||= Reflect.get(request, symbol) === incoming
  }
  return isOf && takesRawBodies(request, symbols)
}

/** Of each kind of request, whether it takes bodies that were read before. Few kinds exist. */
const known = new WeakMap<object, boolean>()

/** Found out by trying, once, while the requests that come meanwhile go the usual way. */
function takesRawBodies(request: Request, symbols: readonly symbol[]): boolean {
  const kind = Object.getPrototypeOf(request) as object
  const isKnown = known.get(kind)
  if (isKnown !== undefined) return isKnown
  known.set(kind, false)
  tryOut(kind, symbols).then(
    (works) => known.set(kind, works),
    () => undefined,
  )
  return false
}

const TRIAL = 'trial'

async function tryOut(kind: object, symbols: readonly symbol[]): Promise<boolean> {
  const trial = (): Request => {
    const incoming = { rawBody: Buffer.from(TRIAL), headers: {}, rawHeaders: [], method: 'POST' }
    const values: Record<string, unknown> = {
      incomingKey: incoming,
      methodKey: 'POST',
      urlKey: 'http://localhost/',
    }
    const request = Object.create(kind) as Request
    for (const symbol of symbols) {
      const value = values[symbol.description ?? '']
      if (value !== undefined) Reflect.set(request, symbol, value)
    }
    return request
  }
  const texts = [
    await trial().text(),
    await trial().clone().text(),
    new TextDecoder().decode(await trial().arrayBuffer()),
    await new Response(trial().body).text(),
  ]
  return texts.every((text) => text === TRIAL)
}

async function readWhole(
  c: Context,
  incoming: Incoming,
  length: number,
): Promise<ExchangeBody | undefined> {
  const bytes = await read(incoming)
  if (bytes.byteLength !== length) return incoming.complete ? undefined : { kind: 'aborted' }
  incoming.rawBody = bytes
  if (!isLight(c.req.raw, incoming)) replace(c, bytes)
  return { kind: 'bytes', bytes }
}

/** Somebody has begun with the request meanwhile, and found nothing: the handler is to find it. */
function replace({ req }: Context, body: Buffer): void {
  const { url, method, headers, signal } = req.raw
  req.raw = new Request(url, { method, headers, signal, body: new Uint8Array(body) })
}

async function read(incoming: Incoming): Promise<Buffer> {
  // What came together with the head is taken in first.
  await Promise.resolve()
  const chunks: Buffer[] = []
  const take = () => {
    for (let chunk = incoming.read(); chunk !== null; chunk = incoming.read()) chunks.push(chunk)
    return incoming.complete
  }
  if (!take()) await untilComplete(incoming, take)
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)
}

/** Until all of it has arrived, or the client has gone. */
function untilComplete(incoming: Incoming, take: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    const finish = () => {
      incoming.off('readable', onReadable)
      incoming.off('close', finish)
      incoming.off('error', finish)
      resolve()
    }
    const onReadable = () => {
      if (take()) finish()
    }
    if (incoming.destroyed) return resolve()
    incoming.on('readable', onReadable)
    incoming.on('close', finish)
    incoming.on('error', finish)
  })
}
