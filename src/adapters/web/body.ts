/** Reads bodies of web-standard requests and responses, up to a limit. */
import { InvalidRequestError } from '../../core/errors.ts'
import { looksLikeLostCall } from '../../core/attempt/failure.ts'
import type { ExchangeBody } from '../../http/guard/exchange.ts'

type Reader = ReadableStreamDefaultReader<unknown>

/** The chunks of a body that were read so far. `rest` reads the others, if there are any. */
export interface PartialBody {
  readonly chunks: readonly Uint8Array<ArrayBuffer>[]
  readonly rest: Reader | undefined
}

/**
 * Reads the whole body from a copy, so that the handler gets the request unread. If the body is too
 * large, the rest is left to the server, as after every early reply: a Node request that is
 * cancelled while data arrives throws an error that cannot be caught.
 */
export async function readRequest(request: Request, bytesMax: number): Promise<ExchangeBody> {
  if (request.bodyUsed || request.body?.locked === true) {
    throw new InvalidRequestError(
      'the body was read before idempotency and cannot be compared with a retry: let the guard ' +
        'run before any code that reads the request',
    )
  }
  if (request.body === null) return { kind: 'none' }
  if (Number(request.headers.get('content-length')) > bytesMax) return { kind: 'too_large' }
  const copy = request.clone()
  let body: PartialBody
  try {
    body = await readUpTo(copy.body, bytesMax)
  } catch (error) {
    if (looksLikeLostCall(error)) return { kind: 'aborted' }
    // The cause is code before the guard, such as a size limit, and not the client.
    throw error
  }
  if (body.rest === undefined) return { kind: 'bytes', bytes: joined(body.chunks) }
  // Stops the copy from buffering. The original is the other branch of the tee, and stays open.
  body.rest.cancel().catch(() => undefined)
  return { kind: 'too_large' }
}

/** Reads a body until it ends or exceeds `bytesMax`. */
export async function readUpTo(
  body: ReadableStream | null,
  bytesMax: number,
): Promise<PartialBody> {
  const chunks: Uint8Array<ArrayBuffer>[] = []
  if (body === null) return { chunks, rest: undefined }
  const reader = body.getReader() as Reader
  for (let length = 0; length <= bytesMax;) {
    const bytes = await readChunk(reader)
    if (bytes === undefined) return { chunks, rest: undefined }
    // Some streams reject empty chunks.
    if (bytes.byteLength > 0) chunks.push(bytes)
    length += bytes.byteLength
  }
  return { chunks, rest: reader }
}

/** A stream of the chunks that were read, then of the rest, at the speed of its reader. */
export function resumeStream(
  chunks: readonly Uint8Array<ArrayBuffer>[],
  rest: Reader,
): ReadableStream<Uint8Array<ArrayBuffer>> {
  const queue = [...chunks]
  return new ReadableStream<Uint8Array<ArrayBuffer>>(
    {
      async pull(controller) {
        const chunk = queue.shift()
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

/** The next bytes, or `undefined` at the end. Cancels a source with chunks of another type. */
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

/** The standard allows only streams of bytes, but some servers send streams of text. */
function toBytes(chunk: unknown): Uint8Array<ArrayBuffer> {
  if (chunk instanceof Uint8Array) return chunk as Uint8Array<ArrayBuffer>
  if (typeof chunk === 'string') return new TextEncoder().encode(chunk)
  throw new TypeError(
    `a body must be a stream of bytes (Uint8Array) or text, got a chunk of type ${typeof chunk}`,
  )
}
