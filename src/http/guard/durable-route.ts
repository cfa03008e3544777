import type { Encryption, EncryptionRule } from '../../core/encryption.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'

/** The operation that a route runs. Routes and workers record its replies in the same way. */
export interface DurableRoute {
  readonly name: string
  readonly replyVersion: number
  readonly encryption: Encryption | undefined
  readonly requireEncryption: boolean | undefined
}

interface RouteReplyOptions {
  readonly replyVersion?: unknown
  readonly encryption?: unknown
}

/**
 * The route must not contradict the reply options of its operation, whose encryption is that of
 * `engine` if it has no other.
 */
export function checkDurable(
  durable: DurableRoute | undefined,
  route: RouteReplyOptions,
  engine: Pick<EncryptionRule, 'encryption'>,
): void {
  if (durable === undefined) return
  if (typeof durable?.name !== 'string') {
    throw new InvalidOptionsError(
      `durable must come from an operation's route, got ${describe(durable)}`,
    )
  }
  const { replyVersion, encryption = engine.encryption } = durable
  const own: RouteReplyOptions = { replyVersion, encryption }
  for (const name of ['replyVersion', 'encryption'] as const) {
    if (route[name] === undefined || route[name] === own[name]) continue
    throw new InvalidOptionsError(
      `${name} of the route contradicts operation "${durable.name}": a worker records its ` +
        'replies, too, and has no options of a route. Set it only in the operation',
    )
  }
}
