/** Payments whose values are encrypted, on a SQLite file that the test can change. */
import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import type { Encryption, EncryptionPurpose } from '../../../src/core/encryption.ts'
import type { Engine, EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import {
  createWorker,
  defineOperation,
  operationPolicy,
  type OperationOptions,
} from '../../../src/durable/index.ts'
import type { SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { openReply } from '../../../src/http/reply/reply-encryption.ts'
import { aesGcm } from '../../http/reply/encryptions.ts'
import { entriesOf } from '../reconciliation/entries.ts'
import { askable, durableFixture } from './durable-fixture.ts'

/** Texts that must not be in the database. */
export const INPUT_MARK = 'input-marker-4711'
export const REQUEST_MARK = 'request-marker-4711'
export const RESULT_MARK = 'result-marker-4711'
export const REPLY_MARK = 'reply-marker-4711'

interface Purchase {
  readonly amount: number
  readonly card: string
}

type Changes = Partial<
  Pick<OperationOptions<Purchase, never>, 'encryption' | 'requireEncryption' | 'maxAttempts'>
>

export type EncryptedFixture = ReturnType<typeof encryptedFixture>

export function encryptedFixture(
  engineOptions: Partial<EngineOptions> = { encryption: aesGcm() },
  { effect = {}, ...changes }: Changes & { effect?: Partial<ReturnType<typeof askable>> } = {},
) {
  const fixture = durableFixture(engineOptions)
  const { path, clock, provider, store } = fixture
  const db = new DatabaseSync(path)
  onTestFinished(() => db.close())
  /** Called before the phase of this name. May throw, as a crash would. */
  const before: Partial<Record<'charge' | 'book', () => void>> = {}
  const pay = defineOperation({
    name: 'payments.create',
    ...changes,
    effects: { charge: { ...askable(provider), ...effect } },
    async run(op, { amount, card }: Purchase) {
      const made = await op.transaction('record', (tx: SqliteTransaction) => {
        tx.exec('CREATE TABLE IF NOT EXISTS entry (id TEXT, what TEXT, amount INT)')
        tx.prepare('INSERT INTO entry VALUES (?, ?, ?)').run(op.recordId, 'recorded', amount)
        return { note: RESULT_MARK }
      })
      before.charge?.()
      const request = { amount, card, note: made.note, more: REQUEST_MARK }
      const charge = await op.external('charge', request)
      before.book?.()
      return op.finish('book', (tx: SqliteTransaction) => {
        tx.prepare('INSERT INTO entry VALUES (?, ?, ?)').run(op.recordId, charge.status, amount)
        return { status: 201, body: { charge: charge.id, note: REPLY_MARK } }
      })
    },
  })
  const send = (key = 'k', engine = fixture.engine, tenant = 'acme') => {
    const scope = { tenant, operation: pay.name }
    const request = { scope, key, fingerprint: 'f', policy: operationPolicy(engine) }
    return engine.run(request, pay.work({ amount: 5, card: INPUT_MARK }))
  }
  const record = (key = 'k') => fixture.record(pay, key)
  return {
    ...fixture,
    db,
    pay,
    before,
    send,
    record,
    /** The outcome of a request: its kind, or the code of its error. */
    ask: (key = 'k', engine = fixture.engine) => send(key, engine).then(({ kind }) => kind, codeOf),
    /** Runs what is due in a worker, after this time. */
    work: async (ms: number, engine: Engine = fixture.engine) => {
      await clock.advanceAsync(ms)
      return createWorker({ engine, operations: [pay] }).runOnce()
    },
    entries: () => entriesOf(path),
    operation: async (key = 'k') => store.durable.phases.load((await record(key)).recordId),
    /** The decrypted reply on record. */
    reply: async (encryption: Encryption | undefined, key = 'k') => {
      const one = await record(key)
      const rule = { encryption, requireEncryption: false }
      const opened = await openReply(one.result!, one, rule)
      if (opened.kind === 'unreadable') return opened.detail
      return JSON.parse(Buffer.from(opened.reply.body).toString()) as unknown
    },
    /** Replaces stored bytes of a phase. */
    write: async (
      name: string,
      part: 'request' | 'result',
      { bytes, key = 'k' }: { bytes: Uint8Array | null; key?: string },
    ) => {
      const { recordId } = await record(key)
      db.prepare(
        `UPDATE oncekey_record_phase SET ${part} = ? WHERE record_id = ? AND name = ?`,
      ).run(bytes, recordId, name)
    },
  }
}

function codeOf(error: unknown): string {
  const { code, message } = error as { readonly code?: string; readonly message: string }
  return code ?? message
}

/** AES with a hook before each call. The hook may throw, or return a promise that rejects. */
export function guardedAes(
  onEncrypt: (purpose: EncryptionPurpose) => void | Promise<void>,
  more: Pick<Encryption, 'prepare'> = {},
): Encryption {
  const cipher = aesGcm()
  return {
    ...more,
    encrypt: (plain, context) => {
      const waiting = onEncrypt(context.purpose)
      if (waiting === undefined) return cipher.encrypt(plain, context)
      return waiting.then(() => cipher.encrypt(plain, context))
    },
    decrypt: cipher.decrypt.bind(cipher),
  }
}
