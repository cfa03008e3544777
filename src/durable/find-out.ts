/** What is known of an outside effect whose result is not on record. */
import type { StoredPhase } from '../core/durable-store.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import { warnOnce } from '../core/warn.ts'
import { faultOf } from './message-checks.ts'
import type { Effect, Finding } from './operation-contract.ts'
import { checkSchema } from './schema.ts'
import { decodeValue, encodeValue } from './values.ts'

export type FoundOut =
  | {
      readonly kind: 'done'
      readonly result: Uint8Array
      readonly providerId: string | undefined
    }
  | { readonly kind: 'not_executed' }
  /** Nobody can know yet. `inMs`: from when on a "not found" would be proof. */
  | { readonly kind: 'open'; readonly inMs: number | undefined; readonly error: unknown }

export interface Intended {
  readonly recordId: string
  readonly phase: StoredPhase
  /** By the clock of the store, which has written the times of the phase. */
  readonly nowMs: number
  readonly signal: AbortSignal
}

/** Asks the provider, where there is a way to ask. Never throws: not to know is an answer. */
export async function findOut(
  effect: Effect,
  { recordId, phase, nowMs, signal }: Intended,
): Promise<FoundOut> {
  const { firstSentAt, sentAt, downstreamKey = '' } = phase
  if (effect.reconcile === undefined) return open(undefined)
  try {
    const request = decodeValue(phase.request)
    const asked = { request, downstreamKey, recordId, firstSentAt, sentAt, signal }
    const finding: Finding = await effect.reconcile(asked)
    return await judge(effect, finding, { phase, nowMs })
  } catch (error) {
    return open(undefined, error)
  }
}

async function judge(
  effect: Effect,
  finding: Finding,
  { phase, nowMs }: { readonly phase: StoredPhase; readonly nowMs: number },
): Promise<FoundOut> {
  switch (finding?.kind) {
    case 'done': {
      const { result, providerId } = await toResult(effect, phase.name, finding.result)
      const given = toProviderId(phase.name, finding.providerId)
      return { kind: 'done', result, providerId: given ?? providerId }
    }
    case 'not_executed':
      return { kind: 'not_executed' }
    case 'not_found': {
      if (effect.provenAfterMs === undefined) return open(undefined)
      const leftMs = phase.sentAt.getTime() + effect.provenAfterMs - nowMs
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

/** A result as it is recorded. Throws where it is not what it must be: the effect has happened. */
export async function toResult(
  effect: Effect,
  name: string,
  given: unknown,
): Promise<{ result: Uint8Array; providerId: string | undefined }> {
  const value = await checkSchema(`the result of "${name}"`, effect.result, given)
  const providerId = toProviderId(name, effect.providerId?.(value))
  return { result: encodeValue(`the result of "${name}"`, value), providerId }
}

/** The effect has happened: what the provider calls it must not keep that from being recorded. */
export function toProviderId(name: string, given: unknown): string | undefined {
  if (given === undefined || given === null) return undefined
  const fault = faultOf(given)
  if (fault === undefined) return given as string
  const about = `the provider id of effect "${name}"`
  warnOnce(`${about} ${fault}; its results are recorded without it`, about)
  return undefined
}

function open(inMs: number | undefined, error?: unknown): FoundOut {
  return { kind: 'open', inMs, error }
}
