/** What is in the files of a database after all kinds of data were written to it. */
import { DatabaseSync } from 'node:sqlite'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import type { EngineOptions } from '../../src/core/engine/engine-contract.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import { HOUR_MS } from '../../src/core/time/durations.ts'
import {
  createOperator,
  createOutbox,
  createRelay,
  createWorker,
  defineOperation,
} from '../../src/durable/index.ts'
import { createGuard } from '../../src/http/guard/guard.ts'
import {
  sqliteStore,
  type SqliteStore,
  type SqliteTransaction,
} from '../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { exchangeOf, InstantHandler } from '../http/guard/instant-handler.ts'
import { aesGcm } from '../http/reply/encryptions.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'

/** Each text is written somewhere, and is found nowhere if all data is encrypted. */
const MARKS = {
  key: 'mark-of-a-key',
  body: 'mark-of-a-body',
  reply: 'mark-of-a-reply',
  header: 'mark-of-a-header',
  input: 'mark-of-an-input',
  request: 'mark-of-a-request',
  result: 'mark-of-a-result',
  charge: 'mark-of-a-charge',
  booked: 'mark-of-a-last-reply',
  message: 'mark-of-a-message',
} as const

const BY = { who: 'ada', why: 'ticket 7' }

/** Writes every kind of data into a new database. Returns its bytes, and all events. */
async function play(options: Partial<EngineOptions>): Promise<{ files: Buffer; events: string }> {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const clock = new FakeClock()
  const path = folder.file('records.db')
  const store = sqliteStore({ path, clock, history: true })
  onTestFinished(() => store.close())
  const events: EngineEvent[] = []
  const engine = createEngine({
    ...{ store, clock, sweepEveryMs: 0, reapEveryMs: 0, retentionMs: HOUR_MS },
    onEvent: (event) => void events.push(event),
    ...options,
  })
  const tenant = () => 'acme'
  const outbox = createOutbox({ engine })
  const pay = defineOperation({
    name: 'pay',
    effects: {
      charge: {
        send: ({ downstreamKey }) => ({ id: downstreamKey, note: MARKS.charge }),
      },
    },
    async run(op, input: { note: string }) {
      const { note } = await op.transaction('record', () => ({ note: MARKS.result }))
      await op.external('charge', { note: MARKS.request, from: note, input })
      return op.finish('book', (tx: SqliteTransaction) => {
        if (op.attempt === 1) {
          void outbox.add(tx, 'receipt', { note: MARKS.message }, { tenant: op.tenant })
        }
        return { status: 201, body: { note: MARKS.booked } }
      })
    },
  })
  const body = { kind: 'bytes', bytes: Buffer.from(JSON.stringify({ note: MARKS.body })) } as const
  const guard = createGuard<object>({ engine, tenant })
  const send = async () => {
    const headers = { 'idempotency-key': MARKS.key, 'content-type': 'application/json' }
    const reply = {
      status: 201,
      headers: [['location', `/payments/${MARKS.header}`]] as const,
      body: Buffer.from(JSON.stringify({ note: MARKS.reply })),
    }
    return guard.handle({}, exchangeOf(headers, body), new InstantHandler(reply))
  }
  const accept = (input: { note: string }) =>
    engine.run(
      {
        ...{ scope: { tenant: 'acme', operation: pay.name }, key: MARKS.key, fingerprint: 'f' },
        policy: { ...engine.policy({}), onLapse: 'resume' },
      },
      (context) => pay.accept(context, input).then(() => new Uint8Array(0)),
    )

  expect((await send()).kind).toBe('deliver')
  expect((await send()).kind).toBe('reply')
  await accept({ note: MARKS.input })
  const worker = createWorker({ engine, operations: [pay] })
  expect(await worker.runOnce()).toMatchObject({ completed: 1 })
  const received: unknown[] = []
  const topics = { receipt: ({ payload }: { payload: unknown }) => void received.push(payload) }
  expect(await createRelay({ engine, topics }).runOnce()).toMatchObject({ relayed: 1 })
  expect(received).toEqual([{ note: MARKS.message }])

  // A discarded reply with its operation, and a discarded reply of a handler.
  const operator = createOperator({ engine, operations: [pay] })
  const discarded: Buffer[] = []
  for (const record of await engine.list({ state: 'completed' })) {
    const { recordId } = record
    const outcome = await operator.discardReply({ recordId }, BY, { despiteEffects: true })
    expect(outcome.kind).toBe('done')
    discarded.push(await discardedBytes(store, recordId))
  }
  expect((await send()).kind).toBe('deliver')
  // Both keys are used again after their expiry, so that the history has records with replies.
  await clock.advanceAsync(2 * HOUR_MS)
  expect((await send()).kind).toBe('deliver')
  await engine.reap()
  return { files: Buffer.concat([bytesOf(path), ...discarded]), events: JSON.stringify(events) }
}

/** Discarded operations are stored as Base64, in which a search finds no text. */
async function discardedBytes(store: SqliteStore, recordId: string): Promise<Buffer> {
  const replies = await store.durable.operator.discarded({ recordId, limit: 10 })
  const parts = replies.flatMap(({ result, operation }) => [
    result,
    operation?.input,
    ...(operation?.phases ?? []).flatMap((phase) => [phase.request, phase.result]),
  ])
  return Buffer.concat(parts.map((part) => part ?? Buffer.alloc(0)))
}

/** The database with its write-ahead log. The table names prove that the bytes are its own. */
function bytesOf(path: string): Buffer {
  const folder = join(path, '..')
  const names = readdirSync(folder)
  expect(names).toContain('records.db-wal')
  const db = new DatabaseSync(path, { readOnly: true })
  const count = (table: string) => db.prepare(`SELECT count(*) AS n FROM ${table}`).get()!['n']
  const tables = ['oncekey_record', 'oncekey_record_history', 'oncekey_record_discarded']
  for (const table of [...tables, 'oncekey_record_message']) {
    expect([table, Number(count(table)) > 0]).toEqual([table, true])
  }
  db.close()
  return Buffer.concat(names.map((name) => readFileSync(join(folder, name))))
}

const found = (bytes: Buffer | string) =>
  Object.entries(MARKS)
    .filter(([, mark]) => bytes.includes(mark))
    .map(([name]) => name)

it('keeps no plain text in the files of a SQLite database', async () => {
  const { files, events } = await play({
    encryption: aesGcm(),
    requireEncryption: true,
    hashKeys: { secret: 'x'.repeat(32) },
  })
  expect(found(files)).toEqual([])
  expect(found(events)).toEqual([])
})

it('finds each text in the same files without encryption, except for the body', async () => {
  const { files } = await play({})
  // Of a body, only the fingerprint is stored.
  expect(found(files)).toEqual(Object.keys(MARKS).filter((name) => name !== 'body'))
})
