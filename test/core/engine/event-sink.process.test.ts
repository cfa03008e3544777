import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import { markReconciled } from '../../../src/core/engine/engine-registry.ts'
import { bytes, engineFixture, type EngineFixture } from './engine-fixture.ts'

const printed: Error[] = []
const keep = (warning: Error) => void printed.push(warning)
beforeAll(() => void process.on('warning', keep))
afterAll(() => void process.off('warning', keep))
afterEach(() => void printed.splice(0))

/** Node emits warnings in the next tick. */
async function messages(): Promise<string[]> {
  await new Promise((resolve) => {
    setImmediate(resolve)
  })
  for (const { name } of printed) expect(name).toBe('OncekeyWarning')
  return printed.map(({ message }) => message)
}

const unheard = (options: Partial<EngineOptions> = {}) =>
  engineFixture({ onEvent: undefined as never, breaker: false, ...options })

async function fail({ run, store }: EngineFixture, error: Error): Promise<void> {
  store.next('claim', error)
  await run(() => bytes('x'), { key: 'failing' }).catch(() => undefined)
}

const refused = () =>
  Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:5432'), { code: 'ECONNREFUSED' })

describe('an engine without a listener', () => {
  it('without a listener, a warning says why the store fails and what to do', async () => {
    await fail(unheard(), refused())
    expect(await messages()).toEqual([
      'The store has never answered this process, and every protected request gets 503: faulty ' +
        'store failed to claim (unavailable): connect ECONNREFUSED 127.0.0.1:5432 (check that ' +
        'the server runs, and that the client has its host and port)',
    ])
  })

  it('without a listener, a warning says when the store answered last', async () => {
    const fixture = unheard()
    await fixture.run(() => bytes('x'))
    await fixture.clock.advanceAsync(30_000)
    await fail(fixture, refused())
    expect(await messages()).toEqual([
      expect.stringMatching(/^The store fails; its last answer was at 2026-01-01T00:00:00\.000Z: /),
    ])
  })

  it('without a listener, a warning repeats once a minute with the suppressed count', async () => {
    const fixture = unheard()
    for (let n = 0; n < 40; n++) await fail(fixture, refused())
    expect(await messages()).toHaveLength(1)
    await fixture.clock.advanceAsync(60_000)
    await fail(fixture, refused())
    const [, second, ...rest] = await messages()
    expect(second).toContain('(39 more of these since the last warning)')
    expect(rest).toEqual([])
  })

  it('without a listener, another cause is printed at once, at most 21 in a minute', async () => {
    const fixture = unheard()
    await fail(fixture, refused())
    await fail(fixture, new Error('permission denied for table oncekey_record'))
    expect(await messages()).toHaveLength(2)
    for (let n = 0; n < 100; n++) await fail(fixture, new Error(`cause number ${n}`))
    expect(await messages()).toHaveLength(21)
  })

  it('without a listener, warnings tell rejected and unsent calls from an outage', async () => {
    const cause = new Error('too long')
    const of = (failure: 'rejected' | 'overloaded') =>
      new StoreFailedError({ store: 'x', operation: 'claim', failure, cause })
    const fixture = unheard()
    await fail(fixture, of('rejected'))
    await fail(fixture, of('overloaded'))
    expect(await messages()).toEqual([
      expect.stringMatching(/^The store rejected the data of a request/),
      expect.stringMatching(/^Too many requests wait for the store/),
    ])
  })

  it('warnings contain no password from a driver message', async () => {
    await fail(unheard(), new Error('cannot reach\npostgres://me:secret@db/keys'))
    const [message] = await messages()
    expect(message).toContain('cannot reach postgres://…@db/keys')
  })

  it('without a listener, a warning says that a record became unknown and what to do', async () => {
    const { run } = unheard()
    await run((context) => {
      context.outcomeUnknown()
      return bytes('x')
    })
    const [message] = await messages()
    expect(message).toMatch(/^Record [0-9a-f-]{36} of "pay" became unknown \(/)
    expect(message).toContain('give the verdict with engine.resolve()')
  })

  it('without a listener, a warning says that a lapsed record became unknown', async () => {
    const { run, node, clock } = unheard()
    void node()(() => new Promise<never>(() => undefined))
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_001)
    await run(() => bytes('x'))
    expect((await messages())[0]).toContain('became unknown (lease_lapsed)')
  })

  it('the warning about an unknown record names the reconciler if there is one', async () => {
    const { run, engine } = unheard()
    markReconciled(engine)
    await run((context) => {
      context.outcomeUnknown()
      return bytes('x')
    })
    expect((await messages())[0]).toMatch(/The reconciler will ask for the outcome\.$/)
  })

  it('without a listener, a warning says that a recorded reply cannot be read', async () => {
    const { engine } = unheard()
    const subject = { identity: 'i', recordId: 'r-1', tenant: 't', operation: 'pay' }
    engine.emit({ kind: 'reply_unreadable', ...subject, reason: 'its checksum is wrong' })
    expect((await messages())[0]).toMatch(
      /^The reply of record r-1 of "pay" cannot be read \(its checksum is wrong\)/,
    )
  })

  it('without a listener, a warning says which value of an operation cannot be read', async () => {
    const { engine } = unheard()
    const subject = { identity: 'i', recordId: 'r-1', tenant: 't', operation: 'pay' }
    const value = { purpose: 'phase_result', phase: 'charge', reason: 'no such key' } as const
    engine.emit({ kind: 'value_unreadable', ...subject, ...value })
    expect((await messages())[0]).toMatch(
      /^The phase_result of phase "charge" of record r-1 of "pay" cannot be read \(no such key\)/,
    )
  })

  it('without a listener, a warning says that the encryption cannot be prepared', async () => {
    const { engine } = unheard()
    const error = new Error('cannot reach https://user:password@keys')
    engine.emit({ kind: 'encryption_failed', tenant: 't', operation: 'pay', error })
    expect(await messages()).toEqual([
      'The encryption for "pay" cannot be prepared, so new keys get 503, and operations that are ' +
        'due wait: cannot reach https://…@keys',
    ])
  })

  it('without a listener, a warning says which topic is paused and what to do', async () => {
    const { engine } = unheard()
    engine.emit({ kind: 'work_paused', part: 'relay', name: 'mail', overdue: 50 })
    expect((await messages())[0]).toMatch(/^Topic "mail" is paused in this process.* 50 of them/)
  })

  it('without a listener, a warning says that requests arrive after close()', async () => {
    const { engine, run } = unheard()
    await engine.close()
    for (let n = 0; n < 3; n++) await run(() => bytes('x')).catch(() => undefined)
    expect(await messages()).toEqual([
      expect.stringMatching(/^A request reached an engine after engine\.close\(\)/),
    ])
  })
})

it('an engine with a listener prints nothing', async () => {
  const fixture = engineFixture()
  await fail(fixture, refused())
  await fixture.engine.close({ graceMs: 0 })
  await fixture.run(() => bytes('x')).catch(() => undefined)
  expect(await messages()).toEqual([])
  expect(fixture.kinds()).toEqual(['store_error', 'claim_refused'])
})
