/** Encrypts and decrypts the payloads of messages. Tests: test/durable/outbox/encrypted.test.ts. */
import {
  HOOK_MS_MAX,
  type EncryptionContext,
  type EncryptionRule,
  type HookBytes,
} from '../../core/encryption.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import type { HeldMessage, NewMessage } from '../../core/store/durable-store.ts'
import { isThenable } from '../../core/thenable.ts'
import { withTimeLimit } from '../../core/time/time-limit.ts'
import { contextOf, openBytes, sealBytes } from '../sealed-bytes.ts'
import { decodeValue } from '../values.ts'

type Addressed = Pick<NewMessage, 'id' | 'topic' | 'tenant'>

/** The stored form of an encoded payload. A promise only if `encrypt` returns one. */
export function sealPayload(
  { encryption }: EncryptionRule,
  message: Addressed,
  plain: Uint8Array,
): HookBytes {
  if (encryption === undefined) return plain
  return sealBytes(plain, payloadContext(message), encryption)
}

/**
 * The payload of a message. A promise only if `decrypt` returns one. A payload that cannot be read
 * throws or rejects: it must not reach a receiver.
 */
export function readPayload(
  engine: Engine,
  message: Pick<HeldMessage, keyof Addressed>,
  stored: Uint8Array,
): unknown {
  const what = `the payload of message ${message.id}`
  const opened = openBytes(what, stored, () => payloadContext(message), engine)
  if (!isThenable(opened)) return decodeValue(opened)
  const reason = (limitMs: number) =>
    new Error(`${what} cannot be read: encryption.decrypt has not answered within ${limitMs} ms`)
  const { clock } = engine
  return withTimeLimit({ clock, limitMs: HOOK_MS_MAX, reason }, () => opened).then(decodeValue)
}

/** With topic and tenant, so that a payload cannot be moved to another handler or tenant. */
function payloadContext({ id, topic, tenant }: Addressed): EncryptionContext {
  const parts = [id, topic, tenant ?? '']
  return contextOf('message', { identity: '', tenant, operation: topic, recordId: id, parts })
}
