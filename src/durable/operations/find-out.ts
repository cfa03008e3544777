/** Finds out the outcome of an outside effect whose result is not on record. */
import type { StoredPhase } from '../../core/store/durable-store.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import { warnOnce } from '../../core/warn.ts'
import { faultOf } from '../outbox/message-checks.ts'
import type { Effect, Finding } from './operation-contract.ts'
import { checkSchema } from './schema.ts'
import { decodeValue, encodeValue } from '../values.ts'

export type EffectState =
  | {
      readonly kind: 'done'
      /** Encoded, but not encrypted. */
      readonly result: Uint8Array
      readonly providerId: string | undefined
    }
  | { readonly kind: 'not_executed' }
  /**
   * The outcome is not known yet. `inMs`: the time until "not found" proves that the effect did not
   * happen.
   */
  | { readonly kind: 'open'; readonly inMs: number | undefined; readonly error: unknown }

export interface OpenEffect {
  readonly recordId: string
  /** The phase with its request encoded, but not encrypted. */
  readonly phase: StoredPhase
  /** By the clock of the store, which wrote the times of the phase. */
  readonly nowMs: number
  readonly signal: AbortSignal
}

/** Asks the provider, if the effect has `reconcile`. Never throws: a failure returns `open`. */
export async function findOut(
  effect: Effect,
  { recordId, phase, nowMs, signal }: OpenEffect,
): Promise<EffectState> {
  const { firstSentAt, sentAt, downstreamKey = '' } = phase
  if (effect.reconcile === undefined) return open(undefined)
  try {
    const request = decodeValue(phase.request)
    const call = { request, downstreamKey, recordId, firstSentAt, sentAt, signal }
    const finding: Finding = await effect.reconcile(call)
    return await judge(effect, finding, { phase, nowMs })
  } catch (error) {
    return open(undefined, error)
  }
}

async function judge(
  effect: Effect,
  finding: Finding,
  { phase, nowMs }: { readonly phase: StoredPhase; readonly nowMs: number },
): Promise<EffectState> {
  switch (finding?.kind) {
    case 'done': {
      const { result, providerId } = await toResult(effect, phase.name, finding.result)
      const reported = toProviderId(phase.name, finding.providerId)
      return { kind: 'done', result, providerId: reported ?? providerId }
    }
    case 'not_executed':
      return { kind: 'not_executed' }
    case 'not_found': {
      if (effect.notFoundIsFinalAfterMs === undefined) return open(undefined)
      const leftMs = phase.sentAt.getTime() + effect.notFoundIsFinalAfterMs - nowMs
      return leftMs <= 0 ? { kind: 'not_executed' } : open(leftMs)
    }
    case 'pending':
      return open(undefined)
    default:
      throw new InvalidOptionsError(
        `reconcile of "${phase.name}" must return { kind }, one of 'done', 'not_found', ` +
          `'not_executed' and 'pending', got ${describe(finding)}`,
      )
  }
}

/**
 * A result, encoded but not encrypted. Throws if the schema rejects it. The effect has happened all
 * the same, so callers must not treat that as a failed send.
 */
export async function toResult(
  effect: Effect,
  name: string,
  raw: unknown,
): Promise<{ result: Uint8Array; providerId: string | undefined }> {
  const value = await checkSchema(`the result of "${name}"`, effect.result, raw)
  const providerId = toProviderId(name, effect.providerId?.(value))
  return { result: encodeValue(`the result of "${name}"`, value), providerId }
}

/** Warns and drops an invalid id: the effect has happened, and its result must be recorded. */
export function toProviderId(name: string, value: unknown): string | undefined {
  if (value === undefined || value === null) return undefined
  const fault = faultOf(value)
  if (fault === undefined) return value as string
  const about = `the provider id of effect "${name}"`
  warnOnce(`${about} ${fault}; its results are recorded without it`, about)
  return undefined
}

function open(inMs: number | undefined, error?: unknown): EffectState {
  return { kind: 'open', inMs, error }
}
