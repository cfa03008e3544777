import { InvalidOptionsError } from '../core/errors.ts'

/**
 * Throws where `idempotency` itself was mounted in place of what it returns: a framework then calls
 * it with a request, or with a context that has one.
 */
export function refuseRequest(options: unknown): void {
  const isRequest = (one: unknown): boolean =>
    typeof one === 'object' && one !== null && 'headers' in one && 'method' in one && 'url' in one
  const { req } = Object(options) as { readonly req?: unknown }
  const raw = (Object(req) as { readonly raw?: unknown }).raw
  if (![options, req, raw].some(isRequest)) return
  throw new InvalidOptionsError(
    'idempotency was given a request in place of its options: it is not a middleware, it makes ' +
      'one. Call it where you mount it, as in app.use(idempotency({ store, tenant })), and not ' +
      'app.use(idempotency)',
  )
}
