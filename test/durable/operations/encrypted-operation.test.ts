import { describe, expect, it } from 'vitest'
import type { EngineEvent } from '../../../src/core/events.ts'
import { createOperator, createReconciler } from '../../../src/durable/index.ts'
import type { Encryption } from '../../../src/core/encryption.ts'
import { aesGcm, flipping, flippingLater } from '../../http/reply/encryptions.ts'
import {
  encryptedFixture,
  guardedAes,
  INPUT_MARK,
  REPLY_MARK,
  type EncryptedFixture,
} from './encrypted-fixture.ts'

const HOUR_MS = 3_600_000
/** Longer than the pause before a failed operation is resumed. */
const LATER_MS = 10 * 60_000

const stop = () => {
  throw new Error('stop')
}

const unreadable = (events: readonly EngineEvent[]) =>
  events.filter(({ kind }) => kind === 'value_unreadable')

/** Every stored value of the operation, by name. */
async function valuesOf({ operation }: EncryptedFixture) {
  const stored = (await operation())!
  const phases = stored.phases.flatMap(({ name, request, result }) => [
    [`${name} request`, request],
    [`${name} result`, result],
  ])
  const all = [['input', stored.input], ...phases] as [string, Uint8Array | undefined][]
  return all.filter((one): one is [string, Uint8Array] => one[1] !== undefined)
}

/** A payment that has charged, and has failed before it was booked. */
async function stopped(fixture: EncryptedFixture, ...keys: string[]) {
  fixture.before.book = stop
  for (const key of keys.length === 0 ? ['k'] : keys) expect(await fixture.ask(key)).toBe('stop')
  delete fixture.before.book
}

describe.each<[string, Encryption]>([
  ['synchronous hooks', aesGcm()],
  ['hooks that return promises', flippingLater],
])('an operation with %s', (_kind, encryption) => {
  it('stores every value encrypted, and resumes from them', async () => {
    const fixture = encryptedFixture({ encryption })
    await stopped(fixture)
    const values = await valuesOf(fixture)
    expect(values.map(([name]) => name)).toEqual([
      ...['input', 'record result', 'charge request', 'charge result'],
    ])
    for (const [, bytes] of values) {
      expect(bytes[0]).toBe(0x45)
      expect(Buffer.from(bytes).includes('marker')).toBe(false)
    }
    expect(await fixture.ask()).toBe('ran')
    expect(fixture.provider.ledger).toMatchObject([{ amount: 5 }])
    expect(fixture.entries()).toEqual(['recorded', 'succeeded'])
    expect(await fixture.reply(encryption)).toEqual({ charge: 'ch_1', note: REPLY_MARK })
    expect(await fixture.reply(undefined)).toMatch(/is encrypted/)
    expect(unreadable(fixture.events)).toEqual([])
  })

  it('is resumed by a worker after a crash', async () => {
    const fixture = encryptedFixture({ encryption })
    await stopped(fixture)
    expect(await fixture.work(LATER_MS)).toMatchObject({ completed: 1 })
    expect(fixture.provider.calls).toHaveLength(1)
    expect(fixture.entries()).toEqual(['recorded', 'succeeded'])
  })
})

describe('a stored value that cannot be read', () => {
  const damage = (bytes: Uint8Array) => bytes.map((byte, at) => (at === 20 ? byte ^ 1 : byte))

  it.each(['record', 'charge'])(
    'runs nothing again when the results of phase %s of two records are swapped',
    async (name) => {
      const fixture = encryptedFixture()
      const { ask, operation, write, provider, entries, events, record, work } = fixture
      await stopped(fixture, 'a', 'b')
      const resultOf = async (key: string) =>
        (await operation(key))!.phases.find((phase) => phase.name === name)!.result!
      const [a, b] = [await resultOf('a'), await resultOf('b')]
      await write(name, 'result', { bytes: b, key: 'a' })
      await write(name, 'result', { bytes: a, key: 'b' })

      for (const key of ['a', 'b']) expect(await ask(key)).toBe('value_unreadable')
      expect(await work(LATER_MS)).toMatchObject({ completed: 0, failed: 2 })
      expect(provider.calls).toHaveLength(2)
      expect(entries()).toEqual(['recorded', 'recorded'])
      expect(await record('a')).toMatchObject({
        state: 'failed_retryable',
        errorCode: 'value_unreadable',
      })
      expect(unreadable(events)).toHaveLength(4)
      expect(unreadable(events)[0]).toMatchObject({
        recordId: (await record('a')).recordId,
        purpose: 'phase_result',
        phase: name,
      })
      expect(JSON.stringify(events)).not.toContain('marker')

      await write(name, 'result', { bytes: a, key: 'a' })
      expect(await ask('a')).toBe('ran')
      expect(provider.calls).toHaveLength(2)
    },
  )

  it('waits for an operator after the last attempt, and has still run nothing again', async () => {
    const fixture = encryptedFixture(undefined, { maxAttempts: 3 })
    const { engine, pay, write, operation, provider, entries, record, work } = fixture
    await stopped(fixture)
    const { result } = (await operation())!.phases[0]!
    await write('record', 'result', { bytes: damage(result!) })
    for (let n = 0; n < 2; n++) expect(await work(LATER_MS)).toMatchObject({ failed: 1 })
    expect(await record()).toMatchObject({ state: 'unknown', errorCode: 'attempts_exhausted' })
    const reconciler = createReconciler({ engine, operations: [pay] })
    expect(await reconciler.runOnce()).toMatchObject({ givenUp: 1 })
    const operator = createOperator({ engine, operations: [pay] })
    expect((await operator.deadLetters()).records).toMatchObject([await record()])
    expect(provider.calls).toHaveLength(1)
    expect(entries()).toEqual(['recorded'])
  })

  it('does not run an operation whose input is damaged', async () => {
    const fixture = encryptedFixture()
    const { db, ask, operation, provider, entries, events } = fixture
    fixture.before.charge = stop
    expect(await ask()).toBe('stop')
    const { input } = (await operation())!
    db.prepare('UPDATE oncekey_record_operation SET input = ?').run(damage(input))
    expect(await ask()).toBe('value_unreadable')
    expect([provider.calls, entries()]).toEqual([[], ['recorded']])
    expect(unreadable(events)).toMatchObject([{ purpose: 'operation_input', phase: undefined }])
  })

  it('sends no effect again whose request is damaged, and does not ask about it', async () => {
    const effect = { resendWithinMs: HOUR_MS }
    const fixture = encryptedFixture(undefined, { effect })
    const { ask, operation, write, provider, record, work } = fixture
    provider.faults.push('late')
    expect(await ask()).toBe('ECONNRESET')
    const [, charge] = (await operation())!.phases
    await write('charge', 'request', { bytes: damage(charge!.request!) })
    const asked = provider.questions.length
    expect(await ask()).toBe('value_unreadable')
    expect(await work(60_000)).toMatchObject({ failed: 1 })
    expect([provider.calls.length, provider.questions.length]).toEqual([1, asked])
    await write('charge', 'request', { bytes: charge!.request! })
    expect(await ask()).toBe('ran')
    expect(provider.ledger).toHaveLength(1)
    expect((await record()).state).toBe('completed')
  })

  it('gives no verdict on an effect whose request is damaged, and asks no provider', async () => {
    const fixture = encryptedFixture()
    const { engine, pay, ask, operation, write, provider, record, clock, events } = fixture
    provider.faults.push('late')
    expect(await ask()).toBe('OUTCOME_UNKNOWN')
    expect((await record()).state).toBe('unknown')
    const [, charge] = (await operation())!.phases
    await write('charge', 'request', { bytes: damage(charge!.request!) })
    const asked = provider.questions.length
    await clock.advanceAsync(LATER_MS)
    const reconciler = createReconciler({ engine, operations: [pay] })
    expect(await reconciler.runOnce()).toMatchObject({ looked: 1, postponed: 1 })
    expect(provider.questions).toHaveLength(asked)
    expect(unreadable(events)).toMatchObject([{ purpose: 'phase_request', phase: 'charge' }])
    expect(events.at(-1)).toMatchObject({ kind: 'maintenance_failed', task: 'reconcile' })

    await write('charge', 'request', { bytes: charge!.request! })
    provider.arrive()
    await clock.advanceAsync(LATER_MS)
    expect(await reconciler.runOnce()).toMatchObject({ resolved: 1 })
    expect(await ask()).toBe('ran')
  })
})

describe('values from before the encryption', () => {
  const half = async (options: Parameters<typeof encryptedFixture>[1] = {}) => {
    const fixture = encryptedFixture({}, options)
    await stopped(fixture)
    return fixture
  }

  it('are read, and later values are encrypted', async () => {
    const encryption = aesGcm()
    const fixture = await half()
    expect(await fixture.ask('k', fixture.makeEngine({ encryption }))).toBe('ran')
    expect(fixture.provider.calls).toHaveLength(1)
    expect(await fixture.reply(encryption)).toMatchObject({ note: REPLY_MARK })
  })

  it.each(['engine', 'operation'])(
    'are refused if the %s requires encryption, and nothing runs',
    async (where) => {
      const rule = { encryption: aesGcm(), requireEncryption: true }
      const fixture = encryptedFixture(
        where === 'engine' ? rule : {},
        where === 'engine' ? {} : rule,
      )
      await stopped(fixture)
      const before = await valuesOf(fixture)
      expect(before.every(([, bytes]) => bytes[0] === 0x45)).toBe(true)
      await fixture.write('charge', 'result', { bytes: Buffer.from('J{"id":"forged"}') })
      expect(await fixture.ask()).toBe('value_unreadable')
      await fixture.write('charge', 'result', { bytes: null })
      expect(await fixture.ask()).toBe('value_unreadable')
      expect(fixture.entries()).toEqual(['recorded'])
      expect(fixture.provider.calls).toHaveLength(1)
    },
  )

  it('are refused for the input, too', async () => {
    const fixture = await half()
    const rule = { encryption: aesGcm(), requireEncryption: true }
    expect(await fixture.ask('k', fixture.makeEngine(rule))).toBe('value_unreadable')
    expect(unreadable(fixture.events)).toMatchObject([{ purpose: 'operation_input' }])
  })
})

it('uses the encryption of the operation in place of that of the engine', async () => {
  const encryption = aesGcm()
  const fixture = encryptedFixture({ encryption: aesGcm() }, { encryption })
  await stopped(fixture)
  expect(await fixture.ask()).toBe('ran')
  expect(await fixture.reply(encryption)).toMatchObject({ note: REPLY_MARK })
  expect(() => encryptedFixture({}, { requireEncryption: true })).toThrow(/needs encryption/)
  const wrong = { requireEncryption: 1 } as never
  expect(() => encryptedFixture({}, wrong)).toThrow(/must be true or false/)
})

describe('an encryption that fails', () => {
  const lost = () => Promise.reject(Object.assign(new Error('reset'), { code: 'ECONNRESET' }))

  it('frees the key if the input cannot be encrypted: nothing has begun', async () => {
    let isDown = true
    const encryption = guardedAes((purpose) => {
      return isDown && purpose === 'operation_input' ? lost() : undefined
    })
    const fixture = encryptedFixture({ encryption })
    const error: unknown = await fixture.send().catch((thrown: unknown) => thrown)
    // Frameworks reply with this status.
    expect(error).toMatchObject({ code: 'NOT_EXECUTED', status: 503 })
    expect(await fixture.record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    expect(await fixture.operation()).toBe(undefined)
    isDown = false
    expect(await fixture.ask()).toBe('ran')
  })

  it('sends no effect if the key service fails after the operation has begun', async () => {
    let isDown = false
    const prepare = async () => {
      if (isDown) throw new Error('down')
    }
    const fixture = encryptedFixture({ encryption: guardedAes(() => undefined, { prepare }) })
    const { ask, provider, record, events, work } = fixture
    fixture.before.charge = () => void (isDown = true)
    expect(await ask()).toBe('NOT_EXECUTED')
    expect(provider.calls).toEqual([])
    const { state, attempt } = await record()
    expect(state).toBe('failed_retryable')
    expect(events.map(({ kind }) => kind)).toContain('encryption_failed')

    // A worker leaves it alone, and a retry of the client gets 503.
    expect(await work(LATER_MS)).toEqual({ completed: 0, failed: 0, missed: 1 })
    expect(await ask()).toBe('free')
    expect(await record()).toMatchObject({ state, attempt })
    delete fixture.before.charge
    isDown = false
    expect(await work(LATER_MS)).toMatchObject({ completed: 1 })
    expect(provider.calls).toHaveLength(1)
  })

  it('tries again to encrypt the result of an effect that has happened', async () => {
    const tries = { failed: 0 }
    const encryption = guardedAes((purpose) => {
      const isCharged = purpose === 'phase_result' && fixture.provider.calls.length > 0
      return isCharged && tries.failed++ < 2 ? lost() : undefined
    })
    const fixture = encryptedFixture({ encryption })
    const asking = fixture.ask()
    while (tries.failed === 0) await fixture.clock.advanceAsync(0)
    await fixture.clock.advanceAsync(200)
    expect(await asking).toBe('ran')
    expect(fixture.provider.calls).toHaveLength(1)
  })

  it('asks the provider later if the result of an effect cannot be encrypted', async () => {
    let isDown = true
    const encryption = guardedAes((purpose) => {
      return isDown && purpose === 'phase_result' && fixture.provider.calls.length > 0
        ? lost()
        : undefined
    })
    const fixture = encryptedFixture({ encryption })
    const { engine, pay, ask, clock, provider, record, events, operation } = fixture
    const asking = ask()
    while (provider.calls.length === 0) await clock.advanceAsync(0)
    await clock.advanceAsync(10_000)
    expect(await asking).toBe('ECONNRESET')
    expect(await record()).toMatchObject({ state: 'unknown', errorCode: 'result_not_recorded' })
    const reconciler = createReconciler({ engine, operations: [pay] })
    expect(await reconciler.runOnce()).toMatchObject({ looked: 1, postponed: 1 })
    expect(events.at(-1)).toMatchObject({ kind: 'maintenance_failed', task: 'reconcile' })

    isDown = false
    await clock.advanceAsync(LATER_MS)
    expect(await reconciler.runOnce()).toMatchObject({ resolved: 1 })
    const [, charge] = (await operation())!.phases
    expect(charge!.result![0]).toBe(0x45)
    expect(await ask()).toBe('ran')
    expect(provider.ledger).toHaveLength(1)
  })

  it('rolls a transaction phase back, and runs it again', async () => {
    let isDown = true
    const encryption = guardedAes((purpose) => {
      return isDown && purpose === 'phase_result' ? lost() : undefined
    })
    const { ask, entries, record } = encryptedFixture({ encryption })
    expect(await ask()).toBe('ECONNRESET')
    expect(entries()).toEqual([])
    expect((await record()).state).toBe('failed_retryable')
    isDown = false
    expect(await ask()).toBe('ran')
    expect(entries()).toEqual(['recorded', 'succeeded'])
  })
})

describe('the result of an effect', () => {
  const RESULT = { id: 'ch_9', key: 'x', amount: 5, status: 'succeeded' }

  it.each(['reconciler', 'operator'] as const)(
    'is encrypted when a verdict of the %s records it',
    async (who) => {
      const encryption = aesGcm()
      const fixture = encryptedFixture({ encryption })
      const { engine, pay, ask, operation, provider } = fixture
      provider.faults.push('late')
      expect(await ask()).toBe('OUTCOME_UNKNOWN')
      const target = { downstreamKey: provider.calls[0]! }
      const verdict = { kind: 'done', result: RESULT } as const
      const by = { who: 'ada', why: 'the books of the provider' }
      // The operator does not know the operation: its engine has the encryption.
      const outcome =
        who === 'reconciler'
          ? await createReconciler({ engine, operations: [pay] }).resolve(target, verdict, by)
          : await createOperator({ engine }).resolve(target, verdict, by)
      expect(outcome.kind).toBe('done')
      const [, charge] = (await operation())!.phases
      expect(charge!.result![0]).toBe(0x45)
      expect(Buffer.from(charge!.result!).includes('ch_9')).toBe(false)
      expect(await ask()).toBe('ran')
      expect(await fixture.reply(encryption)).toMatchObject({ charge: 'ch_9' })
    },
  )

  it('is encrypted as its operation does it, also by a webhook', async () => {
    const encryption = aesGcm()
    const fixture = encryptedFixture({ encryption: aesGcm() }, { encryption })
    const { engine, pay, ask, provider } = fixture
    provider.faults.push('late')
    await ask()
    const reconciler = createReconciler({ engine, operations: [pay] })
    await reconciler.resolve(
      { downstreamKey: provider.calls[0]! },
      { kind: 'done', result: RESULT },
    )
    expect(await ask()).toBe('ran')
    expect(await fixture.reply(encryption)).toMatchObject({ charge: 'ch_9' })
  })

  it('is that of a webhook that comes before the answer', async () => {
    const fixture: EncryptedFixture = encryptedFixture(undefined, {
      effect: {
        send: async ({ downstreamKey }) => {
          const { engine, pay } = fixture
          const reconciler = createReconciler({ engine, operations: [pay] })
          const verdict = { kind: 'done', result: RESULT } as const
          expect(await reconciler.resolve({ downstreamKey }, verdict)).toMatchObject({
            kind: 'done',
          })
          return { ...RESULT, id: 'ch_of_the_answer', status: 'succeeded' as const }
        },
      },
    })
    expect(await fixture.ask()).toBe('ran')
    expect(await fixture.reply(fixture.engine.encryption)).toMatchObject({ charge: 'ch_9' })
  })
})

it('reads accepted input in a worker', async () => {
  const encryption = flipping
  const fixture = encryptedFixture({ encryption })
  const { engine, pay, operation, work } = fixture
  const scope = { tenant: 'acme', operation: pay.name }
  const policy = engine.policy({})
  const resume = { ...policy, onLapse: 'resume' } as const
  const outcome = await engine.run(
    { scope, key: 'k', fingerprint: 'f', policy: resume },
    (context) => pay.accept(context, { amount: 5, card: INPUT_MARK }).then(() => new Uint8Array(0)),
  )
  expect(outcome.kind).toBe('pending')
  expect(Buffer.from((await operation())!.input).includes('marker')).toBe(false)
  expect(await work(0)).toMatchObject({ completed: 1 })
  expect(await fixture.reply(encryption)).toMatchObject({ note: REPLY_MARK })
})
