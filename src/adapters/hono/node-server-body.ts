/**
 * Reads bodies of `@hono/node-server`. Its requests are light: they create a stream only on demand,
 * which costs more than all other work of the guard. So the body is read from Node's request below,
 * if the server is of a known kind and no code has read the request; otherwise from the stream.
 */
import type { Context } from 'hono'
import type { ExchangeBody } from '../../http/guard/exchange.ts'

/** The part of Node's `IncomingMessage` that is used. */
interface Incoming {
  /** The server uses these bytes as the body if other code has read it before. */
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
 * Reads the body and leaves it on the request for the next reader. Returns `undefined` if the body
 * must be read from the stream, and a promise of `undefined` if other code has read it at the same
 * time.
 */
export function readIncoming(
  c: Context,
  bytesMax: number,
): Promise<ExchangeBody | undefined> | undefined {
  const incoming = unreadIncoming(c)
  if (incoming === undefined) return undefined
  // The HTTP parser ensures that the body has the length of the header.
  const length = Number(incoming.headers['content-length'])
  if (!(length > 0 && length <= bytesMax)) return undefined
  return incoming.destroyed ? undefined : readWhole(c, incoming, length)
}

/** Node's request, if no code has begun to read it. */
function unreadIncoming(c: Context): Incoming | undefined {
  const { incoming } = (c.env ?? {}) as { readonly incoming?: Incoming }
  if (incoming?.httpVersionMajor !== 1 || incoming.rawBody !== undefined) return undefined
  if (incoming.readableDidRead || incoming.readableEncoding !== null) return undefined
  if (incoming.listenerCount('data') > 0 || incoming.listenerCount('readable') > 0) return undefined
  return isLight(c.req.raw, incoming) ? incoming : undefined
}

/** The properties of a light request. Any other property may be a stream that was begun. */
const LIGHT = new Set(['incomingKey', 'methodKey', 'urlKey', 'headersKey', 'abortControllerKey'])

function isLight(request: Request, incoming: Incoming): boolean {
  const symbols = Object.getOwnPropertySymbols(request)
  let hasIncoming = false
  for (const symbol of symbols) {
    const { description = '' } = symbol
    if (!LIGHT.has(description)) return false
    hasIncoming ||= Reflect.get(request, symbol) === incoming
  }
  return hasIncoming && usesRawBody(request, symbols)
}

/** Whether requests with this prototype use `rawBody`. There are few prototypes. */
const usesRawBodyByKind = new WeakMap<object, boolean>()

/** Probes each kind of request once. Until the result is known, bodies are read from the stream. */
function usesRawBody(request: Request, symbols: readonly symbol[]): boolean {
  const kind = Object.getPrototypeOf(request) as object
  const known = usesRawBodyByKind.get(kind)
  if (known !== undefined) return known
  usesRawBodyByKind.set(kind, false)
  probeKind(kind, symbols).then(
    (works) => usesRawBodyByKind.set(kind, works),
    () => undefined,
  )
  return false
}

const TRIAL = 'trial'

/** Whether every way to read a request of this kind returns its `rawBody`. */
async function probeKind(kind: object, symbols: readonly symbol[]): Promise<boolean> {
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
  if (!isLight(c.req.raw, incoming)) replaceRequest(c, bytes)
  return { kind: 'bytes', bytes }
}

/** Other code has begun to read the empty request. The handler gets one with the body. */
function replaceRequest({ req }: Context, body: Buffer): void {
  const { url, method, headers, signal } = req.raw
  req.raw = new Request(url, { method, headers, signal, body: new Uint8Array(body) })
}

async function read(incoming: Incoming): Promise<Buffer> {
  // Lets Node first push the bytes that arrived together with the head.
  await Promise.resolve()
  const chunks: Buffer[] = []
  const take = () => {
    for (let chunk = incoming.read(); chunk !== null; chunk = incoming.read()) chunks.push(chunk)
    return incoming.complete
  }
  if (!take()) await untilComplete(incoming, take)
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)
}

/** Waits until the whole body has arrived, or the client has disconnected. */
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
