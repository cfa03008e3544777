/**
 * Encrypts and decrypts the input of an operation, and the requests and results of its phases.
 *
 * Tests: test/durable/record-values.test.ts, test/durable/operations/encrypted-operation.test.ts.
 */
import { NO_BYTES } from '../core/bytes.ts'
import {
  HOOK_MS_MAX,
  type EncryptionContext,
  type EncryptionPurpose,
  type EncryptionRule,
  type HookBytes,
} from '../core/encryption.ts'
import { prepareEncryption, type PreparationParts } from '../core/engine/preparation.ts'
import type { EventSubject } from '../core/events.ts'
import type { PhaseName } from '../core/store/durable-store.ts'
import { isThenable } from '../core/thenable.ts'
import { withTimeLimit } from '../core/time/time-limit.ts'
import { contextOf, openBytes, sealBytes, UnreadableValueError } from './sealed-bytes.ts'
import { decodeValue } from './values.ts'

/** One value of an operation. */
export interface ValueName {
  readonly purpose: Exclude<EncryptionPurpose, 'reply' | 'message'>
  /** Absent for the input. */
  readonly phase: PhaseName | undefined
}

export const INPUT: ValueName = { purpose: 'operation_input', phase: undefined }

export function requestOf({ name, number }: PhaseName): ValueName {
  return { purpose: 'phase_request', phase: { name, number } }
}

export function resultOf({ name, number }: PhaseName): ValueName {
  return { purpose: 'phase_result', phase: { name, number } }
}

/** The values of the operation of one record. */
export class RecordValues {
  readonly #parts: PreparationParts
  readonly #subject: EventSubject
  readonly rule: EncryptionRule

  constructor(parts: PreparationParts, subject: EventSubject, rule: EncryptionRule) {
    this.#parts = parts
    this.#subject = subject
    this.rule = rule
  }

  /** Whether values can be encrypted for the next minutes. A failure is emitted. */
  prepare(): boolean | Promise<boolean> {
    return prepareEncryption(this.#parts, this.rule.encryption, this.#subject)
  }

  /**
   * The stored form of an encoded value. Synchronous unless `encrypt` returns a promise, so that it
   * can be used in a transaction of SQLite. The transaction limits the time of a promise.
   */
  seal(plain: Uint8Array, value: ValueName): HookBytes {
    const { encryption } = this.rule
    if (encryption === undefined) return plain
    return sealBytes(plain, this.#contextOf(value), encryption)
  }

  /** The same outside a transaction, with a limit for the promise. */
  sealInTime(plain: Uint8Array, value: ValueName): HookBytes {
    const sealed = this.seal(plain, value)
    return isThenable(sealed) ? this.#limited('encrypt', sealed) : sealed
  }

  /**
   * Decodes a stored value. Synchronous unless `decrypt` returns a promise. An unreadable value is
   * emitted, and throws or rejects with an `UnreadableValueError`: nothing may run because of it.
   */
  read(stored: Uint8Array | undefined, value: ValueName): unknown {
    return this.#withPlain(stored, value, (plain) => this.#decoded(plain, value))
  }

  /** Does the same, and returns the encoded value, which can be decoded more than once. */
  open(stored: Uint8Array | undefined, value: ValueName): HookBytes {
    return this.#withPlain(stored, value, (plain) => {
      this.#decoded(plain, value)
      return plain
    }) as HookBytes
  }

  #withPlain(
    stored: Uint8Array = NO_BYTES,
    value: ValueName,
    use: (plain: Uint8Array) => unknown,
  ): unknown {
    const failed = (error: unknown): never => this.#unreadable(error, value)
    try {
      const plain = openBytes(nameOf(value), stored, () => this.#contextOf(value), this.rule)
      if (!isThenable(plain)) return use(plain)
      return this.#limited('decrypt', plain).then(use).catch(failed)
    } catch (error) {
      return failed(error)
    }
  }

  #decoded(plain: Uint8Array, value: ValueName): unknown {
    try {
      return decodeValue(plain)
    } catch (cause) {
      throw new UnreadableValueError(nameOf(value), 'it is damaged', { cause })
    }
  }

  #unreadable(error: unknown, value: ValueName): never {
    const { purpose, phase } = value
    const known =
      error instanceof UnreadableValueError
        ? error
        : new UnreadableValueError(nameOf(value), textOf(error), { cause: error })
    const { reason } = known
    const about = { purpose, phase: phase?.name, reason }
    this.#parts.emit({ kind: 'value_unreadable', ...this.#subject, ...about })
    throw known
  }

  #limited<Value>(hook: string, value: PromiseLike<Value>): Promise<Value> {
    const { clock } = this.#parts
    const reason = (limitMs: number) =>
      new Error(`encryption.${hook} has not answered within ${limitMs} ms`)
    return withTimeLimit({ clock, limitMs: HOOK_MS_MAX, reason }, () => value)
  }

  #contextOf({ purpose, phase }: ValueName): EncryptionContext {
    const { identity, tenant, operation, recordId } = this.#subject
    const position = phase === undefined ? [] : [String(phase.number), phase.name]
    const parts = [identity, recordId, ...position]
    return contextOf(purpose, { identity, tenant, operation, recordId, parts })
  }
}

function nameOf({ purpose, phase }: ValueName): string {
  switch (purpose) {
    case 'operation_input':
      return 'the stored input of the operation'
    case 'phase_request':
      return `the stored request of phase "${phase?.name}"`
    case 'phase_result':
      return `the stored result of phase "${phase?.name}"`
  }
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
