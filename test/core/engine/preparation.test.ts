import { describe, expect, it } from 'vitest'
import type { Encryption } from '../../../src/core/encryption.ts'
import { prepareEncryption } from '../../../src/core/engine/preparation.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, engineFixture, gate, heldWork, SCOPE, text } from './engine-fixture.ts'

const keep = (plain: Uint8Array) => plain
const DOWN = new Error('the key service is down')

/** An encryption whose `prepare` the test sets. It encrypts nothing. */
function hooks(prepare: NonNullable<Encryption['prepare']>): Encryption {
  return { prepare, encrypt: keep, decrypt: keep }
}

const FAILURES: readonly (readonly [string, NonNullable<Encryption['prepare']>])[] = [
  [
    'throws',
    () => {
      throw DOWN
    },
  ],
  ['rejects', () => Promise.reject(DOWN)],
]

describe('engine.run', () => {
  it('prepares the encryption of the engine for the tenant before it claims the key', async () => {
    const order: string[] = []
    const encryption = hooks(({ tenant }) => void order.push(`prepare ${tenant}`))
    const { run, store } = engineFixture({ encryption })
    const outcome = await run(() => {
      order.push(`work after ${store.asked('claim').length} claim`)
      return bytes('x')
    })
    expect(outcome.kind).toBe('ran')
    expect(order).toEqual(['prepare acme', 'work after 1 claim'])
  })

  it.each(FAILURES)('runs and records nothing if prepare %s', async (_what, prepare) => {
    const { run, engine, events, state } = engineFixture({ encryption: hooks(prepare) })
    const { work, entered } = heldWork()
    expect(await run(work)).toMatchObject({ kind: 'free' })
    expect(entered()).toBe(0)
    expect(await state()).toBe(undefined)
    expect(await engine.list({ state: 'in_progress' })).toEqual([])
    expect(events).toEqual([{ kind: 'encryption_failed', ...SCOPE, error: DOWN }])
  })

  it('stops waiting for a silent key service after five seconds, and runs nothing', async () => {
    const { run, clock, events } = engineFixture({
      encryption: hooks(() => new Promise(() => undefined)),
    })
    const ending = run(() => bytes('x'))
    await clock.advanceAsync(4_999)
    expect(events).toEqual([])
    await clock.advanceAsync(1)
    expect(await ending).toMatchObject({ kind: 'free' })
    const message = 'encryption.prepare has not answered within 5000 ms'
    expect(events).toMatchObject([{ kind: 'encryption_failed', error: { message } }])
  })

  it('returns a recorded result, also of an older fingerprint, while prepare fails', async () => {
    let isDown = false
    const { run } = engineFixture({
      encryption: hooks(() => {
        if (isDown) throw DOWN
      }),
    })
    await run(() => bytes('done'), { fingerprint: 'old' })
    isDown = true
    const recompute = (stored: string) => (stored === 'old' ? 'old' : undefined)
    const outcome = await run(() => bytes('again'), { recompute })
    expect(outcome.kind === 'replayed' && text(outcome.result)).toBe('done')
  })

  it('waits for a result while prepare fails, and does not take the key over', async () => {
    let isDown = false
    const encryption = hooks(() => (isDown ? Promise.reject(DOWN) : undefined))
    const { run, clock, engine } = engineFixture({ encryption })
    const { work, end } = heldWork()
    const first = run(work)
    await clock.advanceAsync(0)
    isDown = true
    const policy = engine.policy({ whileInProgress: { waitMs: 60_000 } })
    const again = heldWork()
    const second = run(again.work, { policy })
    await clock.advanceAsync(100)
    end('done')
    await first
    await clock.advanceAsync(2_000)
    expect(await second).toMatchObject({ kind: 'replayed', result: bytes('done') })
    expect(again.entered()).toBe(0)
  })

  it('takes over no key that becomes free while it waits and prepare fails', async () => {
    let isDown = false
    const encryption = hooks(() => (isDown ? Promise.reject(DOWN) : undefined))
    const { run, clock, engine } = engineFixture({ encryption })
    const { opened, open } = gate()
    const first = run(() => opened.then(() => ({ kind: 'release', result: bytes('no') })))
    await clock.advanceAsync(0)
    isDown = true
    const policy = engine.policy({ whileInProgress: { waitMs: 60_000 } })
    const again = heldWork()
    const second = run(again.work, { policy })
    await clock.advanceAsync(100)
    open()
    await first
    await clock.advanceAsync(2_000)
    expect(await second).toMatchObject({ kind: 'free' })
    expect(again.entered()).toBe(0)
  })

  it('prepares the encryption of the request in place of that of the engine, or none', async () => {
    const prepared: string[] = []
    const { run } = engineFixture({ encryption: hooks(() => void prepared.push('engine')) })
    await run(() => bytes('x'), { key: 'a', encryption: hooks(() => void prepared.push('own')) })
    await run(() => bytes('x'), { key: 'b', encryption: false })
    await run(() => bytes('x'), { key: 'c', findOnly: true })
    expect(prepared).toEqual(['own'])
  })

  it('claims nothing if the engine was closed during prepare', async () => {
    const { opened, open } = gate()
    const { run, engine, clock, store } = engineFixture({ encryption: hooks(() => opened) })
    const ending = run(() => bytes('x')).catch((error: unknown) => error)
    const closed = engine.close()
    open()
    await clock.advanceAsync(0)
    expect(await ending).toMatchObject({ code: 'ENGINE_CLOSED' })
    await clock.advanceAsync(10_000)
    expect(await closed).toEqual({ abandoned: 0 })
    expect(store.asked('claim')).toEqual([])
  })
})

describe('prepareEncryption', () => {
  const setup = () => {
    const events: EngineEvent[] = []
    return { events, parts: { clock: new FakeClock(), emit: (e: EngineEvent) => events.push(e) } }
  }

  it('needs no promise without encryption, without the hook, or if it is synchronous', () => {
    const { parts } = setup()
    const plain: Encryption = { encrypt: keep, decrypt: keep }
    for (const encryption of [undefined, plain, hooks(() => undefined)]) {
      expect(prepareEncryption(parts, encryption, SCOPE)).toBe(true)
    }
  })

  it('needs no promise if a synchronous hook throws', () => {
    const { parts, events } = setup()
    expect(prepareEncryption(parts, hooks(FAILURES[0]![1]), SCOPE)).toBe(false)
    expect(events).toMatchObject([{ kind: 'encryption_failed' }])
  })

  it('stops its timer when the key service answers', async () => {
    const { parts } = setup()
    const prepared = prepareEncryption(
      parts,
      hooks(async () => undefined),
      SCOPE,
    )
    expect(prepared).toBeInstanceOf(Promise)
    expect(await prepared).toBe(true)
    expect(parts.clock.pendingTimers).toBe(0)
  })
})

describe('createEngine', () => {
  it('shows its encryption to the parts that use it', () => {
    const encryption = hooks(() => undefined)
    const { engine } = engineFixture({ encryption, requireEncryption: true })
    expect([engine.encryption, engine.requireEncryption]).toEqual([encryption, true])
    const plain = engineFixture().engine
    expect([plain.encryption, plain.requireEncryption]).toEqual([undefined, false])
  })

  it.each([
    ['no decrypt', { encryption: { encrypt: keep } }, /createEngine: encryption must be/],
    [
      'a prepare that is no function',
      { encryption: { encrypt: keep, decrypt: keep, prepare: 1 } },
      /function prepare/,
    ],
    ['required encryption without any', { requireEncryption: true }, /needs encryption/],
    ['a requirement that is no boolean', { requireEncryption: 'yes' }, /true or false, got "yes"/],
  ])('refuses %s', (_what, options, message) => {
    expect(() => engineFixture(options as never)).toThrow(message)
  })
})
