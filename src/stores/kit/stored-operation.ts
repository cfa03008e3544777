/**
 * An operation with its phases as one byte string, for replies that an operator has discarded. Read
 * by people, and never run again.
 */
import type { StoredOperation, StoredPhase } from '../../core/store/durable-store.ts'

const BYTES = ['request', 'result'] as const
const DATES = ['firstSentAt', 'sentAt', 'doneAt'] as const

export function encodeOperation({ phases, input, ...name }: StoredOperation): Uint8Array {
  const snapshot = { ...name, input: toBase64(input), phases: phases.map(toPlain) }
  return Buffer.from(JSON.stringify(snapshot))
}

export function decodeOperation(bytes: Uint8Array): StoredOperation {
  const { input, phases, ...name } = JSON.parse(Buffer.from(bytes).toString()) as Snapshot
  return { ...name, input: Buffer.from(input, 'base64'), phases: phases.map(toPhase) }
}

interface Snapshot {
  readonly name: string
  readonly version: number
  readonly input: string
  readonly phases: readonly PlainPhase[]
}

type PlainPhase = Readonly<Record<string, unknown>>

/** Fields that are `undefined` are left out by JSON. */
function toPlain(phase: StoredPhase): PlainPhase {
  const plain: Record<string, unknown> = { ...phase }
  for (const name of BYTES) plain[name] = phase[name] && toBase64(phase[name])
  for (const name of DATES) plain[name] = phase[name]?.getTime()
  return plain
}

function toPhase(plain: PlainPhase): StoredPhase {
  const phase: Record<string, unknown> = { downstreamKey: undefined, providerId: undefined }
  Object.assign(phase, plain)
  for (const name of BYTES) {
    const text = plain[name] as string | undefined
    phase[name] = text === undefined ? undefined : Buffer.from(text, 'base64')
  }
  for (const name of DATES) {
    const ms = plain[name] as number | undefined
    phase[name] = ms === undefined ? undefined : new Date(ms)
  }
  return phase as unknown as StoredPhase
}

function toBase64(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('base64')
}
