/** Errors with Node's codes, for calls that a captured response refuses in place of Node. */

export function codedError(
  type: new (message: string) => Error,
  message: string,
  code: string,
): Error {
  return Object.assign(new type(message), { code })
}

export function headersSentError(method: string): Error {
  const message = `Cannot call ${method}() after the head of the reply was written`
  return codedError(Error, message, 'ERR_HTTP_HEADERS_SENT')
}

export function writeAfterEndError(): Error {
  return codedError(Error, 'write after end', 'ERR_STREAM_WRITE_AFTER_END')
}
