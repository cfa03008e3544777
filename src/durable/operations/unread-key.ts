import type { OperationAttempt } from '../../core/attempt/operation-attempt.ts'

/** A downstream key that knows whether it was read. */
export class WatchedKey {
  isRead = false
  readonly #key: string

  constructor(key: string) {
    this.#key = key
  }

  read(): string {
    this.isRead = true
    return this.#key
  }
}

/**
 * Reports a `send` that did not use its key: after a retry, a second charge is possible. Only a
 * developer can fix it, so nothing is reported in production.
 */
export function reportUnreadKey(
  attempt: OperationAttempt,
  { operation, phase }: { readonly operation: string; readonly phase: string },
): void {
  if (process.env['NODE_ENV'] === 'production') return
  attempt.emit({ kind: 'effect_without_key', ...attempt.subject, name: operation, phase })
}
