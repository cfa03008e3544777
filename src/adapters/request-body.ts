/** Reads a Node request's body for the fingerprint, and leaves it there for the handler. */
import type { IncomingMessage } from 'node:http'
import type { ExchangeBody } from '../http/exchange.ts'
import { holdRequestSocket, type HeldRequestSocket } from './held-socket.ts'

/**
 * The whole body, put back so that a parser behind us finds it untouched. `undefined` where
 * somebody has read it already, or has made text of it.
 */
export function peekBody(
  req: IncomingMessage,
  bytesMax: number,
): Promise<ExchangeBody> | ExchangeBody | undefined {
  const { 'content-length': length, 'transfer-encoding': encoding } = req.headers
  if (encoding === undefined && (length === undefined || Number(length) === 0)) {
    return { kind: 'none' }
  }
  if (Number(length) > bytesMax) return { kind: 'too_large' }
  if (req.readableDidRead || req.readableEnded) return undefined
  // Decoded to text on its way (`setEncoding`), it cannot be put back as it was.
  if (req.readableEncoding !== null) return undefined
  if (req.destroyed) return { kind: 'aborted' }
  return readAndPutBack(req, bytesMax)
}

async function readAndPutBack(req: IncomingMessage, bytesMax: number): Promise<ExchangeBody> {
  // What came together with the head is taken in first. An empty body that ends while somebody
  // listens for it has ended for the parser behind us, too.
  await Promise.resolve()
  return new Promise((resolve) => {
    const chunks: Buffer[] = []
    let bytes = 0
    const finish = (body: ExchangeBody) => {
      req.off('readable', onReadable)
      req.off('close', onClose)
      req.off('error', onClose)
      resolve(body)
    }
    const onReadable = () => {
      // Never a read beyond the last byte: the stream would say "end", and say it only once.
      while (req.readableLength > 0) {
        const chunk = req.read() as Buffer
        chunks.push(chunk)
        bytes += chunk.length
        if (bytes > bytesMax) return finish({ kind: 'too_large' })
      }
      if (!req.complete) return
      const whole = Buffer.concat(chunks)
      if (whole.length > 0) req.unshift(whole)
      finish({ kind: 'bytes', bytes: whole })
    }
    const onClose = () => finish({ kind: 'aborted' })
    if (req.complete) return onReadable()
    if (req.destroyed) return onClose()
    req.on('readable', onReadable)
    req.on('close', onClose)
    req.on('error', onClose)
  })
}

/**
 * Keeps a request readable although its client is gone: its body is all there, and a handler that
 * runs must get it, or it would answer a request that nobody made.
 */
export class HeldRequest {
  readonly #req: IncomingMessage
  readonly #socket: HeldRequestSocket
  readonly #giveBackDestroy: () => void
  #isHeld = true
  #destroyedWith: { readonly error: Error | undefined } | undefined

  constructor(req: IncomingMessage) {
    this.#req = req
    const { socket } = req
    this.#socket = holdRequestSocket(req)
    const real = req.destroy
    const destroy = (error?: Error) => {
      // Once it is read to its end, it closes: whoever iterates over it waits for that.
      const isOver = !this.#isHeld || req.readableEnded
      if (isOver || !socket.destroyed) return real.call(req, error)
      this.#destroyedWith ??= { error }
      return req
    }
    Object.defineProperty(req, 'destroy', { configurable: true, writable: true, value: destroy })
    // Not taken away: an object that loses a property is slow for ever.
    this.#giveBackDestroy = () => {
      if (req.destroy === destroy) req.destroy = real
    }
  }

  letGo(): void {
    this.#socket.letGo()
    this.#isHeld = false
    this.#giveBackDestroy()
    if (this.#destroyedWith !== undefined) this.#req.destroy(this.#destroyedWith.error)
  }
}
