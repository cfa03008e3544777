/** Bodies of web-standard requests and responses, read as far as somebody will keep them. */
import { InvalidRequestError } from '../core/errors.ts'
import { looksLikeLostCall } from '../core/failure.ts'
import type { ExchangeBody } from '../http/exchange.ts'

type Reader = ReadableStreamDefaultReader<unknown>

/** What was read of a body; `rest` reads on where that is not all. */
export interface Begun {
  readonly chunks: readonly Uint8Array<ArrayBuffer>[]
  readonly rest: Reader | undefined
}

/**
 * The whole body, read from a copy, so that the handler finds the request as it was sent. Where it
 * is too large, the rest is left to the server, as after every reply that comes early: cancelled
 * while data arrive, a Node request throws where nobody can catch it.
 */
export async function readRequest(request: Request, bytesMax: number): Promise<ExchangeBody> {
  if (request.bodyUsed || request.body?.locked === true) {
    throw new InvalidRequestError(
      'the body was read before idempotency and cannot be compared with a retry: protect the ' +
        'handler before anything reads the request',
    )
  }
  if (request.body === null) return { kind: 'none' }
  if (Number(request.headers.get('content-length')) > bytesMax) return { kind: 'too_large' }
  const copy = request.clone()
  let body: Begun
  try {
    body = await readUpTo(copy.body, bytesMax)
  } catch (error) {
    if (looksLikeLostCall(error)) return { kind: 'aborted' }
    // Not the client: whoever stands before us and looks at what comes, as for a limit.
    throw error
  }
  if (body.rest === undefined) return { kind: 'bytes', bytes: joined(body.chunks) }
  // So the copy gathers nothing more. It ends only itself: the original is a branch of its own.
  body.rest.cancel().catch(() => undefined)
  return { kind: 'too_large' }
}

/** Reads a body until it ends or has more than so many bytes. */
export async function readUpTo(body: ReadableStream | null, bytesMax: number): Promise<Begun> {
  const chunks: Uint8Array<ArrayBuffer>[] = []
  if (body === null) return { chunks, rest: undefined }
  const reader = body.getReader() as Reader
  for (let length = 0; length <= bytesMax;) {
    const bytes = await readChunk(reader)
    if (bytes === undefined) return { chunks, rest: undefined }
    // An empty chunk says nothing, and some streams do not like to be given one.
    if (bytes.byteLength > 0) chunks.push(bytes)
    length += bytes.byteLength
  }
  return { chunks, rest: reader }
}

/** What was read already, then the rest: chunk by chunk, no faster than somebody reads. */
export function resumed(
  chunks: readonly Uint8Array<ArrayBuffer>[],
  rest: Reader,
): ReadableStream<Uint8Array<ArrayBuffer>> {
  const held = [...chunks]
  return new ReadableStream<Uint8Array<ArrayBuffer>>(
    {
      async pull(controller) {
        const chunk = held.shift()
        if (chunk !== undefined) return controller.enqueue(chunk)
        const bytes = await readChunk(rest)
        if (bytes === undefined) controller.close()
        else controller.enqueue(bytes)
      },
      cancel: (reason) => rest.cancel(reason),
    },
    { highWaterMark: 0 },
  )
}

/** The next bytes, or `undefined` at the end. A source that gives something else is given up. */
async function readChunk(reader: Reader): Promise<Uint8Array<ArrayBuffer> | undefined> {
  const { done, value } = await reader.read()
  if (done) return undefined
  try {
    return toBytes(value)
  } catch (error) {
    reader.cancel(error).catch(() => undefined)
    throw error
  }
}

export function joined(chunks: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(chunks.reduce((sum, { byteLength }) => sum + byteLength, 0))
  let at = 0
  for (const chunk of chunks) {
    bytes.set(chunk, at)
    at += chunk.byteLength
  }
  return bytes
}

/** Streams of text are against the letter of the standard, but some servers send them. */
function toBytes(chunk: unknown): Uint8Array<ArrayBuffer> {
  if (chunk instanceof Uint8Array) return chunk as Uint8Array<ArrayBuffer>
  if (typeof chunk === 'string') return new TextEncoder().encode(chunk)
  throw new TypeError('a body must be a stream of bytes (Uint8Array)')
}
