import { describe, expect, it } from 'vitest'
import type { Encryption } from '../../../src/core/encryption.ts'
import { createOperator, UnreadableValue, type Inspection } from '../../../src/durable/index.ts'
import { encodeHttpReply } from '../../../src/http/reply/http-reply.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { aesGcm, flippingLater } from '../../http/reply/encryptions.ts'
import {
  encryptedFixture,
  INPUT_MARK,
  REPLY_MARK,
  REQUEST_MARK,
  RESULT_MARK,
  type EncryptedFixture,
} from '../operations/encrypted-fixture.ts'

type Found = Extract<Inspection, { kind: 'found' }>

const BY = { who: 'ada', why: 'ticket 7' }

async function inspect(
  { engine, pay, record }: EncryptedFixture,
  { knows = true, key = 'k', on = engine } = {},
): Promise<Found> {
  const operator = createOperator({ engine: on, operations: knows ? [pay] : [] })
  const { recordId } = await record(key)
  const found = await operator.inspect({ recordId })
  if (found.kind !== 'found') throw new Error('not found')
  return found
}

const bodyOf = (reply: Found['reply']) =>
  reply instanceof UnreadableValue ? reply.reason : Buffer.from(reply?.body ?? '').toString()

const VALUES = {
  input: { amount: 5, card: INPUT_MARK },
  phases: [
    { name: 'record', request: undefined, result: { note: RESULT_MARK } },
    { name: 'charge', request: { more: REQUEST_MARK }, result: { id: 'ch_1' } },
  ],
}

describe.each<[string, Encryption]>([
  ['synchronous hooks', aesGcm()],
  ['hooks that return promises', flippingLater],
])('operator.inspect with %s', (_kind, encryption) => {
  it('shows values and reply decrypted', async () => {
    const fixture = encryptedFixture({ encryption })
    await fixture.ask()
    const found = await inspect(fixture)
    expect(found.operation).toMatchObject(VALUES)
    expect(found.reply).toMatchObject({ status: 201 })
    expect(bodyOf(found.reply)).toContain(REPLY_MARK)
    expect(Buffer.from(found.record!.result!).includes(REPLY_MARK)).toBe(false)
  })

  it('shows a discarded reply with its operation decrypted', async () => {
    const fixture = encryptedFixture({ encryption })
    const { engine, pay, ask, record } = fixture
    await ask()
    const { recordId } = await record()
    const operator = createOperator({ engine, operations: [pay] })
    const options = { despiteEffects: true }
    expect(await operator.discardReply({ recordId }, BY, options)).toMatchObject({ kind: 'done' })
    const found = await inspect(fixture)
    expect([found.reply, found.operation]).toEqual([undefined, undefined])
    expect(found.discarded).toMatchObject([{ recordId, operation: VALUES }])
    expect(bodyOf(found.discarded[0]!.reply)).toContain(REPLY_MARK)
    expect(Buffer.from(found.discarded[0]!.result).includes(REPLY_MARK)).toBe(false)
  })
})

it('uses the encryption of the operation, if the operator knows the operation', async () => {
  const fixture = encryptedFixture({ encryption: aesGcm() }, { encryption: aesGcm() })
  await fixture.ask()
  expect((await inspect(fixture)).operation).toMatchObject(VALUES)
  const { operation, reply } = await inspect(fixture, { knows: false })
  expect(operation!.input).toBeInstanceOf(UnreadableValue)
  expect(reply).toBeInstanceOf(UnreadableValue)
})

it('says which value it cannot read and why, shows the others, and emits nothing', async () => {
  const fixture = encryptedFixture()
  const { ask, operation, write, events, before } = fixture
  before.book = () => {
    throw new Error('stop')
  }
  await ask()
  const [record, charge] = (await operation())!.phases
  await write('record', 'result', { bytes: charge!.result! })
  events.length = 0
  const found = await inspect(fixture)
  expect(found.operation!.input).toEqual(VALUES.input)
  const [shown, other] = found.operation!.phases
  expect(other).toMatchObject(VALUES.phases[1]!)
  const value = shown!.result as UnreadableValue
  expect(value).toBeInstanceOf(UnreadableValue)
  expect(value.reason).toMatch(/could not decrypt it/)
  expect(Buffer.from(value.stored).equals(charge!.result!)).toBe(true)
  expect(record!.name).toBe('record')
  expect(events).toEqual([])
})

it('says that a plain value is not encrypted if the engine requires that', async () => {
  const fixture = encryptedFixture({})
  await fixture.ask()
  expect((await inspect(fixture)).operation).toMatchObject(VALUES)
  const on = fixture.makeEngine({ encryption: aesGcm(), requireEncryption: true })
  const { operation, reply } = await inspect(fixture, { on })
  expect(operation!.input).toMatchObject({ reason: expect.stringMatching(/is not encrypted/) })
  expect(reply).toMatchObject({ reason: expect.stringMatching(/is not encrypted/) })
})

it('waits for a silent key service once, and not once for each value', async () => {
  const fixture = encryptedFixture()
  await fixture.ask()
  const silent = { ...aesGcm(), decrypt: () => new Promise<Uint8Array>(() => undefined) }
  const { clock } = fixture
  const looking = inspect(fixture, { on: fixture.makeEngine({ encryption: silent }) })
  // Once for the reply, and once for the values.
  for (let n = 0; n < 10; n++) await clock.advanceAsync(1_000)
  const { operation, reply } = await looking
  expect(reply).toMatchObject({ reason: expect.stringMatching(/no answer within 5000 ms/) })
  expect(operation!.input).toMatchObject({ reason: expect.stringMatching(/within 5000 ms/) })
})

describe('operator.discardReply of a plain handler', () => {
  it.each([
    [422, 'done'],
    [201, 'refused'],
  ])('reads an encrypted %i to see whether it is an effect: %s', async (status, kind) => {
    const clock = new FakeClock()
    const encryption = aesGcm()
    const timers = { sweepEveryMs: 0, reapEveryMs: 0 }
    const engine = createEngine({ store: memoryStore({ clock }), clock, encryption, ...timers })
    const scope = { tenant: 'acme', operation: 'POST /x' }
    await engine.run({ scope, key: 'k', fingerprint: 'f' }, ({ identity, recordId }) =>
      encodeHttpReply({ identity, recordId, ...scope }, { status, encryption }),
    )
    const operator = createOperator({ engine })
    expect(await operator.discardReply({ scope, key: 'k' }, BY)).toMatchObject({ kind })
  })
})
