import { InvalidOptionsError } from '../../core/errors.ts'
import { warnOnce } from '../../core/warn.ts'

/** Methods that no guard protects, because their requests change nothing. */
const READS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS'])

/**
 * Warns once about a guard on a route whose method the guard does not protect. `path` is the
 * template of the route, not the path of a request, because each printed warning stays in memory.
 */
export function warnUseless(method: string, path: string): void {
  warnOnce(
    `idempotency() is mounted on ${method} ${path}, where it protects nothing: ` +
      (READS.has(method)
        ? `${method} requests change nothing and pass unchanged. Remove it from this route`
        : `${method} requests pass unchanged unless the guard protects them. Set ` +
          `{ methods: ['${method}'] } if a repeated request does harm, or remove the guard`),
  )
}

/** The second guard would find the key held by the first one, and refuse every request. */
export function mountedTwice(): InvalidOptionsError {
  return new InvalidOptionsError(
    'idempotency() is mounted twice on the way to this handler, for example by app.use() and on ' +
      'its route: mount it once',
  )
}

/**
 * Throws if `idempotency` itself was mounted instead of its result: a framework then calls it with
 * a request, or with a context that contains one.
 */
export function refuseRequest(options: unknown): void {
  const isRequest = (one: unknown): boolean =>
    typeof one === 'object' && one !== null && 'headers' in one && 'method' in one && 'url' in one
  const { req } = Object(options) as { readonly req?: unknown }
  const raw = (Object(req) as { readonly raw?: unknown }).raw
  if (![options, req, raw].some(isRequest)) return
  throw new InvalidOptionsError(
    'idempotency got a request instead of options: it is not a middleware, but returns one. Call ' +
      'it where you mount it, as in app.use(idempotency({ store, tenant })), not ' +
      'app.use(idempotency)',
  )
}
