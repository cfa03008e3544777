/** Checks of the arguments of `operator.*` and `reconciler.resolve`. */
import type { Actor } from '../../core/store/operator-store.ts'
import type { ResolveVerdict } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions } from '../../core/options.ts'
import type { EffectTarget, EffectVerdict, RecordTarget } from './operator-acts.ts'

/** Limits of the audit columns. People read an audit entry: a name and a reason, not a report. */
const WHO_LENGTH_MAX = 255
const WHY_LENGTH_MAX = 2_000

export function checkActor(where: string, by: Actor): Actor {
  rejectUnknownOptions(`${where}: by`, by, ['who', 'why'])
  return {
    who: checkAuditText(`${where}: who`, by.who, WHO_LENGTH_MAX),
    why: checkAuditText(`${where}: why`, by.why, WHY_LENGTH_MAX),
  }
}

function checkAuditText(where: string, value: unknown, lengthMax: number): string {
  if (typeof value !== 'string' || value.trim() === '') {
    throw new InvalidOptionsError(
      `${where} must be a non-empty string for the audit, got ${describe(value)}`,
    )
  }
  if (value.length > lengthMax) {
    throw new InvalidOptionsError(
      `${where} has ${value.length} characters; at most ${lengthMax} are allowed`,
    )
  }
  if (value.includes('\0') || !value.isWellFormed()) {
    throw new InvalidOptionsError(`${where} must be well-formed text without NUL`)
  }
  return value
}

/** Throws on an invalid target: `{ recordId: undefined }` must not match any record. */
export function checkEffectTarget(where: string, target: EffectTarget): EffectTarget {
  const names = ['recordId', 'downstreamKey', 'providerId'] as const
  const fields = Object(target) as Readonly<Partial<Record<(typeof names)[number], unknown>>>
  const present = names.filter((name) => Object.hasOwn(fields, name))
  const [name] = present
  const value = name && fields[name]
  checkAttempt(where, target)
  if (present.length === 1 && typeof value === 'string' && value !== '') return target
  throw new InvalidOptionsError(
    `${where}: the target must be { recordId }, { downstreamKey } or { providerId }, with a ` +
      `non-empty string, got ${present.length === 1 ? describe(value) : describe(target)}`,
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
      `non-empty strings, got ${describe(target)}`,
  )
}

/** An invalid attempt that passed as "any attempt" could decide about a later send. */
function checkAttempt(where: string, target: unknown): void {
  const { attempt } = Object(target) as { readonly attempt?: unknown }
  if (attempt === undefined || Number.isSafeInteger(attempt)) return
  throw new InvalidOptionsError(
    `${where}: attempt must be a whole number or undefined, got ${describe(attempt)}`,
  )
}

/** Whether a verdict is about a whole record, not about one effect. */
export function isRecordVerdict(
  verdict: EffectVerdict | ResolveVerdict,
): verdict is ResolveVerdict {
  const { kind } = Object(verdict) as { readonly kind?: unknown }
  return kind === 'completed' || kind === 'failed_retryable'
}

/** Without this check, a misspelt "completed" would free the key of a payment that was made. */
export function checkRecordVerdict(where: string, verdict: ResolveVerdict): ResolveVerdict {
  const { kind, result } = Object(verdict) as { kind?: unknown; result?: unknown }
  if (kind === 'failed_retryable') return { kind }
  if (kind === 'completed' && result instanceof Uint8Array) return { kind, result }
  if (kind === 'completed') {
    throw new InvalidOptionsError(
      `${where}: result must be a Uint8Array, for example from encodeHttpReply(), got ` +
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
    `${where}: kind must be 'done' or 'not_executed' for an effect, or 'completed' or ` +
      `'failed_retryable' for a whole record, got ${describe(kind)}`,
  )
}
