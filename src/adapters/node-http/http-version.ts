import { InvalidOptionsError } from '../../core/errors.ts'

/**
 * The error for a protected request over HTTP/2; `undefined` for HTTP/1. A capture replaces
 * methods and properties of `http.ServerResponse`, which responses of `node:http2` do not have.
 */
export function http2Refusal(req: HasVersion): InvalidOptionsError | undefined {
  if (!isHttp2(req)) return undefined
  return new InvalidOptionsError(
    'idempotency cannot capture replies of node:http2, so a protected request over HTTP/2 is ' +
      'refused and its handler does not run: let a proxy speak HTTP/2 to your clients, and ' +
      'serve the app with node:http',
  )
}

interface HasVersion {
  readonly httpVersionMajor: number
}

/**
 * Whether `node:http2` serves this request. Its requests have a `stream`. The version is not
 * enough: a client may write "HTTP/2.0" into a request over HTTP/1.1.
 */
export function isHttp2(req: HasVersion): boolean {
  return req.httpVersionMajor > 1 && 'stream' in req
}
