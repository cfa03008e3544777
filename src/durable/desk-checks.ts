import type { ResolveVerdict } from '../core/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import type { EffectTarget, EffectVerdict, RecordTarget } from './desk.ts'

/** Throws on targets that are none: `{ recordId: undefined }` must not mean "any". */
export function checkEffectTarget(where: string, target: EffectTarget): EffectTarget {
  const names = ['recordId', 'downstreamKey', 'providerId'] as const
  const fields = Object(target) as Readonly<Partial<Record<(typeof names)[number], unknown>>>
  const given = names.filter((name) => Object.hasOwn(fields, name))
  const [name] = given
  const value = name && fields[name]
  checkAttempt(where, target)
  if (given.length === 1 && typeof value === 'string' && value !== '') return target
  throw new InvalidOptionsError(
    `${where}: the target must be { recordId }, { downstreamKey } or { providerId }, with a ` +
      `text that is not empty, got ${given.length === 1 ? describe(value) : describe(target)}`,
  )
}

export function checkRecordTarget(where: string, target: RecordTarget): RecordTarget {
  const { recordId, scope, key } = Object(target) as {
    readonly recordId?: unknown
    readonly scope?: { readonly tenant?: unknown; readonly operation?: unknown }
    readonly key?: unknown
  }
  checkAttempt(where, target)
  const texts = recordId === undefined ? [scope?.tenant, scope?.operation, key] : [recordId]
  if (texts.every((text) => typeof text === 'string' && text !== '')) return target
  throw new InvalidOptionsError(
    `${where}: the target must be { recordId }, or { scope: { tenant, operation }, key }, with ` +
      `texts that are not empty, got ${describe(target)}`,
  )
}

/** Read as "any", an attempt that is none would decide about one that nobody looked into. */
function checkAttempt(where: string, target: unknown): void {
  const { attempt } = Object(target) as { readonly attempt?: unknown }
  if (attempt === undefined || Number.isSafeInteger(attempt)) return
  throw new InvalidOptionsError(
    `${where}: attempt must be a whole number, or left out, got ${describe(attempt)}`,
  )
}

/** Without it, a misspelt "completed" would free the key of a payment that was made. */
export function checkRecordVerdict(where: string, verdict: ResolveVerdict): ResolveVerdict {
  const { kind, result } = Object(verdict) as { kind?: unknown; result?: unknown }
  if (kind === 'failed_retryable') return { kind }
  if (kind === 'completed' && result instanceof Uint8Array) return { kind, result }
  if (kind === 'completed') {
    throw new InvalidOptionsError(
      `${where}: result must be a Uint8Array, such as encodeHttpReply() gives, got ` +
        describe(result),
    )
  }
  throw new InvalidOptionsError(
    `${where}: kind must be 'completed' or 'failed_retryable', got ${describe(kind)}`,
  )
}

export function checkEffectVerdict(where: string, verdict: EffectVerdict): EffectVerdict {
  const { kind } = Object(verdict) as { kind?: unknown }
  if (kind === 'done' || kind === 'not_executed') return verdict
  throw new InvalidOptionsError(
    `${where}: kind must be 'done' or 'not_executed', got ${describe(kind)}`,
  )
}
