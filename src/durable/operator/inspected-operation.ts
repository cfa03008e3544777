/** Decrypts stored data for operators. Tests: test/durable/operator/inspect-encrypted.test.ts. */
import { HOOK_MS_MAX, type EncryptionRule } from '../../core/encryption.ts'
import type { EventSubject } from '../../core/events.ts'
import type { StoredOperation, StoredPhase } from '../../core/store/durable-store.ts'
import type { Clock } from '../../core/time/clock.ts'
import { withTimeLimit } from '../../core/time/time-limit.ts'
import { unreadable, type StoredReply } from '../../http/reply/reply-codec.ts'
import { openReply } from '../../http/reply/reply-encryption.ts'
import { INPUT, requestOf, resultOf, type RecordValues, type ValueName } from '../record-values.ts'
import { UnreadableValueError } from '../sealed-bytes.ts'

/** An operation with its values decrypted. What cannot be read is an `UnreadableValue`. */
export interface InspectedOperation {
  readonly name: string
  readonly version: number
  readonly input: unknown
  readonly phases: readonly InspectedPhase[]
}

export interface InspectedPhase extends Omit<StoredPhase, 'request' | 'result'> {
  readonly request: unknown
  readonly result: unknown
}

/** Stored bytes that are damaged, do not decrypt, or are not encrypted as they must be. */
export class UnreadableValue {
  readonly reason: string
  /** The bytes as they are stored. */
  readonly stored: Uint8Array

  constructor(reason: string, stored: Uint8Array) {
    this.reason = reason
    this.stored = stored
  }
}

/** All values at once: a key service that is silent delays the operator once, not for each. */
export async function inspectOperation(
  values: RecordValues,
  { name, version, input, phases }: StoredOperation,
): Promise<InspectedOperation> {
  const [shown, ...inspected] = await Promise.all([
    inspectValue(values, input, INPUT),
    ...phases.map((phase) => inspectPhase(values, phase)),
  ])
  return { name, version, input: shown, phases: inspected }
}

async function inspectPhase(values: RecordValues, phase: StoredPhase): Promise<InspectedPhase> {
  const [request, result] = await Promise.all([
    inspectValue(values, phase.request, requestOf(phase)),
    inspectValue(values, phase.result, resultOf(phase)),
  ])
  return { ...phase, request, result }
}

async function inspectValue(
  values: RecordValues,
  stored: Uint8Array | undefined,
  value: ValueName,
): Promise<unknown> {
  // A transaction has no request, and an effect that was not answered has no result.
  if (stored === undefined) return undefined
  try {
    return await values.read(stored, value)
  } catch (error) {
    if (!(error instanceof UnreadableValueError)) throw error
    return new UnreadableValue(error.reason, stored)
  }
}

/** A recorded reply. Bytes that are no reply of an HTTP route are unreadable, too. */
export async function inspectReply(
  clock: Clock,
  rule: EncryptionRule,
  owner: EventSubject,
  result: Uint8Array,
): Promise<StoredReply | UnreadableValue> {
  const onLimit = ({ message }: Error) => unreadable(`encryption.decrypt: ${message}`)
  const opened = openReply(result, owner, rule)
  const decoded =
    opened instanceof Promise
      ? await withTimeLimit({ clock, limitMs: HOOK_MS_MAX, onLimit }, () => opened)
      : opened
  return decoded.kind === 'reply' ? decoded.reply : new UnreadableValue(decoded.detail, result)
}
