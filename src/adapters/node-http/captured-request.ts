import type { IncomingMessage } from 'node:http'
import { captureRequestSocket, type CapturedRequestSocket } from './captured-socket.ts'

/**
 * Keeps a request readable after its client is gone. The whole body has arrived, and a handler
 * that runs must get it, or it would handle a request that the client did not send.
 */
export class CapturedRequest {
  readonly #req: IncomingMessage
  readonly #socket: CapturedRequestSocket
  readonly #restoreDestroy: () => void
  #isCaptured = true
  /** The argument of a `destroy()` that waits for `restore()`. */
  #destroyedWith: { readonly error: Error | undefined } | undefined

  constructor(req: IncomingMessage) {
    this.#req = req
    const { socket } = req
    this.#socket = captureRequestSocket(req)
    const real = req.destroy
    const destroy = (error?: Error) => {
      // A request that was read to its end must close: code that iterates over it waits for that.
      const isOver = !this.#isCaptured || req.readableEnded
      if (isOver || !socket.destroyed) return real.call(req, error)
      this.#destroyedWith ??= { error }
      return req
    }
    Object.defineProperty(req, 'destroy', { configurable: true, writable: true, value: destroy })
    // The property is not deleted: an object that loses a property stays slow.
    this.#restoreDestroy = () => {
      if (req.destroy === destroy) req.destroy = real
    }
  }

  restore(): void {
    this.#socket.restore()
    this.#isCaptured = false
    this.#restoreDestroy()
    if (this.#destroyedWith !== undefined) this.#req.destroy(this.#destroyedWith.error)
  }
}
