import { InvalidOptionsError } from '../core/errors.ts'

/**
 * The error for a protected request over HTTP/2; `undefined` for HTTP/1. A held reply replaces
 * methods and properties of `http.ServerResponse`, which the responses of `node:http2` do not have.
 */
export function http2Refusal(req: {
  readonly httpVersionMajor: number
}): InvalidOptionsError | undefined {
  if (!(req.httpVersionMajor > 1)) return undefined
  return new InvalidOptionsError(
    'idempotency cannot hold back replies of node:http2, so a protected request over HTTP/2 is ' +
      'refused and nothing runs: let a proxy speak HTTP/2 to your clients, and serve the app ' +
      'with node:http',
  )
}
