/** Error handling for plain servers, which have none. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { sendReply } from '../node-http/send-reply.ts'

/** Replies to a request that failed. May be asynchronous. */
export type OnRequestError = (error: unknown, req: IncomingMessage, res: ServerResponse) => unknown

/** Never throws and never rejects, because no caller would handle the error. */
export type AnswerError = (
  error: unknown,
  req: IncomingMessage,
  res: ServerResponse,
) => Promise<void>

export function answerWith(onRequestError: OnRequestError | undefined): AnswerError {
  return async (error, req, res) => {
    try {
      if (onRequestError === undefined) answerFailure(error, res)
      else await onRequestError(error, req, res)
    } catch (second) {
      answerFailure(second, res)
    }
  }
}

function answerFailure(error: unknown, res: ServerResponse): void {
  // The client has aborted its upload: that is no failure, and no client waits for a reply.
  if (isAborted(error)) return void res.destroy()
  process.emitWarning(error instanceof Error ? error : new Error(String(error)))
  if (res.writableEnded) return
  // A reply that has begun cannot become an error. Cut off, it shows the client that it failed.
  if (res.headersSent) return void res.destroy()
  const headers = [['Content-Type', 'text/plain; charset=utf-8']] as const
  sendReply(res, { status: 500, headers, body: Buffer.from('Internal Server Error') })
}

/** The error type that the guard and body parsers use. */
function isAborted(error: unknown): boolean {
  return error instanceof Error && 'type' in error && error.type === 'request.aborted'
}
