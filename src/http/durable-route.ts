import type { Encryption } from '../core/encryption.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe } from '../core/options.ts'

/** The operation that a route runs: its replies are recorded the same way wherever it ends. */
export interface DurableRoute {
  readonly name: string
  readonly replyVersion: number
  readonly encryption: Encryption | undefined
}

interface Beside {
  readonly replyVersion?: unknown
  readonly encryption?: unknown
}

/** What the operation says of its replies, the route must not say differently. */
export function checkDurable(durable: DurableRoute | undefined, route: Beside): void {
  if (durable === undefined) return
  if (typeof durable?.name !== 'string') {
    throw new InvalidOptionsError(
      `durable must come from an operation's route, got ${describe(durable)}`,
    )
  }
  for (const name of ['replyVersion', 'encryption'] as const) {
    if (route[name] === undefined || route[name] === durable[name]) continue
    throw new InvalidOptionsError(
      `${name} of the route contradicts operation "${durable.name}": a worker, which knows no ` +
        'route, records its replies too. Say it in the operation',
    )
  }
}
