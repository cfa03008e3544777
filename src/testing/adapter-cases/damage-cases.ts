/** Records that were damaged, copied or written by other software cause no wrong reply. */
import assert from 'node:assert/strict'
import type { ClaimOutcome, Store } from '../../core/store/store.ts'
import { encodeReply, type StoredReply } from '../../http/reply/reply-codec.ts'
import type { AdapterCase, AdapterFixture } from './adapter-case.ts'
import {
  assertProblem,
  assertReplay,
  jsonReply,
  recordOf,
  recordsOf,
  stage,
  type Setup,
  type Stage,
} from './case-stage.ts'
import type { Received } from './case-client.ts'

const assertUnreadable = (reply: Received): void =>
  assertProblem(reply, 409, 'idempotency_reply_unreadable')

/** A cipher that ignores the context, so it decrypts the reply of any record. */
const plainText = {
  encrypt: (bytes: Uint8Array) => bytes,
  decrypt: (bytes: Uint8Array) => bytes,
}

export const damageCases: readonly AdapterCase[] = [
  {
    name: 'returns 409 when one bit of the recorded reply is flipped, and does not run again',
    async run(fixture) {
      const rows = new EditedRows(fixture.store)
      const { send, runs } = await stageOn(rows, fixture, {
        handle: () => jsonReply({ paid: true }, 201),
      })
      const first = await send({ key: 'key-1' })
      const { recordId } = await recordOf(fixture.store)
      const { result } = (await fixture.store.read({ recordId }))!
      // 13 is no divisor of 8, so the loop reaches every field and every bit position of a byte.
      for (let bit = 0; bit < result!.length * 8; bit += 13) {
        rows.edit = (bytes) => flipped(bytes, bit)
        assertUnreadable(await send({ key: 'key-1' }))
      }
      rows.edit = (bytes) => bytes
      assertReplay(await send({ key: 'key-1' }), first)
      assert.equal(runs(), 1)
    },
  },
  ...[{}, { encryption: plainText }].map((options): AdapterCase => {
    const kind = 'encryption' in options ? 'encrypted ' : ''
    return {
      name: `returns 409 when the record holds the ${kind}reply of another tenant`,
      async run(fixture) {
        const rows = new EditedRows(fixture.store)
        const setup = { options, handle: () => jsonReply({ secret: 'of ann' }, 201) }
        const { send, runs } = await stageOn(rows, fixture, setup)
        const first = await send({ key: 'key-1', tenant: 'ann' })
        await send({ key: 'key-1', tenant: 'bob' })
        const records = await recordsOf(fixture.store)
        const ann = records.find(({ tenant }) => tenant === 'ann')!
        const { result } = (await fixture.store.read({ recordId: ann.recordId }))!
        rows.edit = () => result!
        const reply = await send({ key: 'key-1', tenant: 'bob' })
        assertUnreadable(reply)
        assert.doesNotMatch(reply.text, /of ann/)
        assertReplay(await send({ key: 'key-1', tenant: 'ann' }), first)
        assert.equal(runs(), 2)
      },
    }
  }),
  ...[0, 100, 101, 199, 600, 999].map((status) =>
    forgedReplyCase(`returns 409 for a recorded status of ${status}`, { status }, assertUnreadable),
  ),
  ...(
    [
      ['name', ['x-a b', '1']],
      ['name', ['x-a\r\nx-b', '1']],
      ['value', ['x-a', '1\r\nset-cookie: sid=1']],
      ['value', ['x-a', 'snow \u2603']],
    ] as const
  ).map(([part, header]) =>
    forgedReplyCase(
      `returns 409 for a recorded header ${part} of ${JSON.stringify(header)}`,
      { headers: [header] },
      assertUnreadable,
    ),
  ),
  forgedReplyCase(
    'replays a recorded reply without the headers that are never recorded',
    {
      headers: [
        ['content-type', 'text/plain'],
        ['set-cookie', 'sid=1'],
        ['transfer-encoding', 'chunked'],
        ['content-length', '3'],
        ['connection', 'x-hop'],
        ['x-hop', '1'],
        ['x-kept', '1'],
      ],
    },
    (reply) => {
      assert.deepEqual([reply.status, reply.text], [201, 'by hand'])
      assert.deepEqual([reply.headers['x-kept'], reply.headers['x-hop']], ['1', undefined])
      assert.equal(reply.headers['set-cookie'], undefined)
      assert.notEqual(reply.headers['content-length'], '3')
    },
  ),
]

/** A record with a valid checksum and a reply that no handler can have sent. */
function forgedReplyCase(
  name: string,
  changes: Partial<StoredReply>,
  check: (reply: Received) => void,
): AdapterCase {
  return {
    name,
    async run(fixture) {
      const rows = new EditedRows(fixture.store)
      const { send, runs } = await stageOn(rows, fixture, {})
      await send({ key: 'key-1' })
      const record = await recordOf(fixture.store)
      const body = new TextEncoder().encode('by hand')
      const plain = { status: 201, headers: [], body, elided: false, schemaVersion: 1 }
      rows.edit = () => encodeReply({ ...plain, ...changes }, record)
      check(await send({ key: 'key-1' }))
      assert.equal(runs(), 1)
    },
  }
}

function stageOn(rows: EditedRows, fixture: AdapterFixture, setup: Setup): Promise<Stage> {
  return stage({ ...fixture, store: rows.store }, setup)
}

/** Wraps a store and replaces the bytes of completed records. */
class EditedRows {
  edit: (result: Uint8Array) => Uint8Array = (bytes) => bytes
  readonly store: Store

  constructor(store: Store) {
    this.store = new Proxy(store, {
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name)
        if (typeof value !== 'function') return value
        const method = value.bind(target) as (...args: unknown[]) => unknown
        if (name !== 'claim') return method
        return async (...args: unknown[]) => {
          const outcomes = (await method(...args)) as ClaimOutcome[]
          return outcomes.map((outcome) => {
            if (outcome.kind !== 'completed') return outcome
            return { ...outcome, result: this.edit(Uint8Array.from(outcome.result)) }
          })
        }
      },
    })
  }
}

function flipped(bytes: Uint8Array, bit: number): Uint8Array {
  bytes[bit >> 3]! ^= 1 << (bit & 7)
  return bytes
}
