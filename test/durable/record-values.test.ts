import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Encryption, EncryptionContext } from '../../src/core/encryption.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import { InvalidOptionsError } from '../../src/core/errors.ts'
import { INPUT, RecordValues, requestOf, resultOf } from '../../src/durable/record-values.ts'
import { encodeValue } from '../../src/durable/values.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { aesGcm, failing, flipping, flippingLater } from '../http/reply/encryptions.ts'

const SUBJECT = {
  identity: 'a'.repeat(32),
  tenant: 'acme',
  operation: 'pay',
  recordId: '019b76da-a800-7039-8f50-d4713c9f4e52',
}
const CHARGE = { name: 'charge', number: 2 }
const RESULT = resultOf(CHARGE)

function setup(encryption?: Encryption, { subject = SUBJECT, requireEncryption = false } = {}) {
  const events: EngineEvent[] = []
  const clock = new FakeClock()
  const parts = { clock, emit: (event: EngineEvent) => void events.push(event) }
  const on = (more: Partial<typeof SUBJECT>, require = requireEncryption) =>
    new RecordValues(parts, { ...subject, ...more }, { encryption, requireEncryption: require })
  return { values: on({}), on, events, clock }
}

const encoded = (value: unknown) => encodeValue('it', value)
const errorOf = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: unknown) => (error as Error).message,
  )
const SECRET = { card: 'a-secret-card' }

describe('an encrypted value', () => {
  it.each([
    ['JSON', SECRET],
    ['bytes', Uint8Array.of(1, 2, 3)],
    ['undefined', undefined],
  ])('is read back, and stored without its text: %s', (_what, value) => {
    const { values } = setup(aesGcm())
    const sealed = values.seal(encoded(value), RESULT) as Uint8Array
    expect([...sealed.subarray(0, 2)]).toEqual([0x45, 1])
    expect(Buffer.from(sealed).includes('secret')).toBe(false)
    expect(values.read(sealed, RESULT)).toEqual(value)
  })

  it('is read at once by a synchronous hook, and later by one that returns a promise', async () => {
    const { values } = setup(flippingLater)
    const sealing = values.seal(encoded(SECRET), RESULT)
    expect(sealing).toBeInstanceOf(Promise)
    const reading = values.read(await sealing, RESULT)
    expect(reading).toBeInstanceOf(Promise)
    expect(await reading).toEqual(SECRET)
  })

  it('gives the hooks the purpose, the record, and one byte string of both', () => {
    const contexts: EncryptionContext[] = []
    const note = (bytes: Uint8Array, context: EncryptionContext) => (contexts.push(context), bytes)
    const { values } = setup({ encrypt: note, decrypt: note })
    for (const value of [INPUT, requestOf(CHARGE), RESULT]) {
      values.read(values.seal(encoded(1), value) as Uint8Array, value)
    }
    expect(contexts.map(({ purpose }) => purpose)).toEqual(
      ['operation_input', 'phase_request', 'phase_result'].flatMap((one) => [one, one]),
    )
    expect(contexts[4]).toMatchObject(SUBJECT)
    const { identity, recordId } = SUBJECT
    const record = `:32:${identity}:36:${recordId}`
    const texts = contexts.map(({ associatedData }) => Buffer.from(associatedData).toString())
    expect(texts[0]).toBe(`oncekey:operation_input:1${record}`)
    expect(texts[4]).toBe(`oncekey:phase_result:1${record}:1:2:6:charge`)
    expect(texts[5]).toBe(texts[4])
  })

  it('has other associated data for each record, phase and purpose, also for hostile names', () => {
    const seen = (identity: string, recordId: string, name: string, number: number) => {
      let text = ''
      const { on } = setup({
        ...flipping,
        encrypt: (bytes, { associatedData }) => {
          text = Buffer.from(associatedData).toString()
          return bytes
        },
      })
      void on({ identity, recordId }).seal(encoded(1), resultOf({ name, number }))
      return text
    }
    const part = fc.string({ unit: fc.constantFrom('1', ':', 'a'), maxLength: 6 })
    const parts = fc.tuple(part, part, part, fc.integer({ min: 1, max: 12 }))
    fc.assert(
      fc.property(parts, parts, (one, other) => {
        const isSame = JSON.stringify(one) === JSON.stringify(other)
        expect(seen(...one) === seen(...other)).toBe(isSame)
      }),
    )
  })
})

describe.each([
  ['a cipher with associated data', aesGcm()],
  ['a cipher that ignores them', aesGcm(undefined, { bound: false })],
  ['a cipher that does not authenticate', flipping],
])('a value in another place, with %s', (_kind, encryption) => {
  const OTHER_ID = SUBJECT.recordId.replace('0', '1')

  it.each([
    ['another record', { recordId: OTHER_ID }, RESULT],
    ['another key', { identity: 'b'.repeat(32) }, RESULT],
    ['another phase', {}, resultOf({ ...CHARGE, name: 'refund' })],
    ['another number', {}, resultOf({ ...CHARGE, number: 3 })],
    ['the request of its phase', {}, requestOf(CHARGE)],
    ['the input', {}, INPUT],
  ])('is refused: %s', (_what, subject, value) => {
    const { values, on, events } = setup(encryption)
    const sealed = values.seal(encoded(SECRET), RESULT) as Uint8Array
    expect(() => on(subject).read(sealed, value)).toThrow(/cannot be read/)
    const { purpose, phase } = value
    expect(events).toMatchObject([
      { kind: 'value_unreadable', ...SUBJECT, ...subject, purpose, phase: phase?.name },
    ])
    expect(JSON.stringify(events)).not.toContain('secret')
  })
})

describe('an unreadable value', () => {
  const ours = aesGcm()
  const sealed = setup(ours).values.seal(encoded(SECRET), RESULT) as Uint8Array
  const json = encoded(SECRET)

  it.each([
    ['the wrong key', aesGcm(), sealed, /could not decrypt it/],
    ['no encryption', undefined, sealed, /neither its operation nor its engine has encryption/],
    ['a hook that throws', failing, sealed, /could not decrypt it: no such key/],
    ['another format', ours, Uint8Array.of(0x45, 2, ...sealed.subarray(2)), /has format 2/],
    ['no format', ours, sealed.subarray(0, 1), /has no format/],
    ['no content', ours, sealed.subarray(0, 2), /could not decrypt it/],
    ['an unknown mark', ours, Uint8Array.of(0x46, 1), /it is damaged/],
    ['broken JSON', ours, json.subarray(0, -1), /it is damaged/],
    ['a text', { ...ours, decrypt: () => 'x' as never }, sealed, /must return a Uint8Array/],
    ['too few bytes', { ...ours, decrypt: () => new Uint8Array(3) }, sealed, /another record/],
  ])('throws and is reported: %s', (_what, encryption, stored, reason) => {
    const { values, events } = setup(encryption)
    expect(() => values.read(stored, RESULT)).toThrow(reason)
    expect(() => values.open(stored, RESULT)).toThrow(/the stored result of phase "charge"/)
    expect(events).toMatchObject([
      { kind: 'value_unreadable', phase: 'charge', reason: expect.stringMatching(reason) },
      { kind: 'value_unreadable' },
    ])
  })

  it('is refused for each wrong bit and each missing end', () => {
    const { values } = setup(ours)
    for (let bit = 0; bit < sealed.length * 8; bit++) {
      const damaged = Uint8Array.from(sealed)
      damaged[bit >> 3]! ^= 1 << (bit & 7)
      expect(() => values.read(damaged, RESULT)).toThrow(/cannot be read/)
    }
    for (let length = 1; length < sealed.length; length++) {
      expect(() => values.read(sealed.subarray(0, length), RESULT)).toThrow(/cannot be read/)
    }
  })

  it('rejects if a key service rejects, or does not answer within five seconds', async () => {
    const silent = setup({ ...flipping, decrypt: () => new Promise(() => undefined) })
    const reading = silent.values.read(sealed, RESULT) as Promise<unknown>
    const refused = errorOf(reading)
    await silent.clock.advanceAsync(5_000)
    expect(await refused).toMatch(/decrypt has not answered within 5000 ms/)
    expect(silent.events).toMatchObject([{ kind: 'value_unreadable' }])
    const decrypt = () => Promise.reject(new Error('throttled'))
    const { values } = setup({ ...flipping, decrypt })
    await expect(values.read(sealed, RESULT)).rejects.toThrow(/could not decrypt it: throttled/)
  })
})

describe('requireEncryption', () => {
  it.each([
    ['JSON', encoded(SECRET)],
    ['an empty value', new Uint8Array(0)],
    ['an absent value', undefined],
  ])('refuses a plain value, which is readable without it: %s', (_what, stored) => {
    const { values, on } = setup(aesGcm(), { requireEncryption: true })
    expect(() => values.read(stored, RESULT)).toThrow(/not encrypted, but requireEncryption is set/)
    expect(on({}, false).read(stored, RESULT)).toEqual(stored?.length ? SECRET : undefined)
  })
})

describe('sealing', () => {
  it('changes nothing without encryption', () => {
    const plain = encoded(SECRET)
    expect(setup().values.seal(plain, RESULT)).toBe(plain)
  })

  it('passes errors of encrypt on, and refuses what is not bytes', async () => {
    expect(() => setup(failing).values.seal(encoded(1), RESULT)).toThrow('no key to encrypt with')
    const texts = { ...flipping, encrypt: () => 'x' as never }
    expect(() => setup(texts).values.seal(encoded(1), RESULT)).toThrow(InvalidOptionsError)
    const later = { ...flipping, encrypt: async () => 'x' as never }
    await expect(setup(later).values.seal(encoded(1), RESULT)).rejects.toThrow(/Uint8Array/)
  })

  it('is limited in time outside a transaction, and needs no promise if encrypt needs none', () => {
    const { values } = setup(flipping)
    expect(values.sealInTime(encoded(1), RESULT)).toBeInstanceOf(Uint8Array)
  })

  it('rejects after five seconds outside a transaction', async () => {
    const { values, clock } = setup({ ...flipping, encrypt: () => new Promise(() => undefined) })
    const sealing = values.sealInTime(encoded(1), RESULT) as Promise<Uint8Array>
    const refused = errorOf(sealing)
    await clock.advanceAsync(5_000)
    expect(await refused).toBe('encryption.encrypt has not answered within 5000 ms')
  })
})
