/**
 * What a reply under a key may carry for its client. A browser shows none of these to scripts of
 * another origin unless `Access-Control-Expose-Headers` names them.
 *
 * @example
 * ```ts
 * app.use(cors({ exposedHeaders: [...EXPOSED_HEADERS] }))
 * ```
 */
export const EXPOSED_HEADERS = [
  'Idempotent-Replayed',
  'Idempotent-Body-Elided',
  'Idempotency-Expires',
  'Retry-After',
  'Location',
  'Link',
] as const
