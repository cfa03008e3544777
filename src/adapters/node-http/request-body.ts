/** Reads the body of a Node request for the fingerprint, and puts it back for the handler. */
import type { IncomingMessage } from 'node:http'
import type { ExchangeBody } from '../../http/guard/exchange.ts'

/**
 * Reads the whole body and puts it back, so that a parser after the guard can read it. Returns
 * `undefined` when other code has read the body already or has called `setEncoding`.
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
  // A body that the stream decodes to text (`setEncoding`) cannot be put back as bytes.
  if (req.readableEncoding !== null) return undefined
  if (req.destroyed) return { kind: 'aborted' }
  return readAndPutBack(req, bytesMax)
}

async function readAndPutBack(req: IncomingMessage, bytesMax: number): Promise<ExchangeBody> {
  // Lets Node push the part of the body that arrived with the head. If an empty body ended while
  // this function listens, a parser after the guard would miss its `end`.
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
      // A read after the last byte would make the stream emit `end`, which it does only once.
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
