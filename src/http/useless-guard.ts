import { warnOnce } from '../core/warn.ts'

/** Methods that no guard protects: a request with one of them changes nothing. */
const READS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS'])

/**
 * Warns once of a guard that is mounted on a route whose method it lets pass. `path` is the route's
 * template, not that of a request: the warnings that were given are kept for good.
 */
export function warnUseless(method: string, path: string): void {
  warnOnce(
    `idempotency() is mounted on ${method} ${path}, where it protects nothing: ` +
      (READS.has(method)
        ? `${method} requests change nothing and pass untouched. Leave it out there`
        : `${method} requests pass untouched unless the guard names them. Give it ` +
          `{ methods: ['${method}'] } where repeating one does harm, or leave it out`),
  )
}
