import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { EngineOptions } from '../../src/core/engine.ts'
import { StoreFailedError } from '../../src/core/errors.ts'
import { markReconciled } from '../../src/core/reconciled.ts'
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
  it('prints why the store fails and what to do, and that it has never answered', async () => {
    await fail(unheard(), refused())
    expect(await messages()).toEqual([
      'The store has never answered this process, and every protected request gets 503: faulty ' +
        'store failed to claim (unavailable): connect ECONNREFUSED 127.0.0.1:5432 (check that ' +
        'the server runs, and that the client has its host and port)',
    ])
  })

  it('says of a store that has answered before when it did last', async () => {
    const fixture = unheard()
    await fixture.run(() => bytes('x'))
    await fixture.clock.advanceAsync(30_000)
    await fail(fixture, refused())
    expect(await messages()).toEqual([
      expect.stringMatching(/^The store fails; it answered last at 2026-01-01T00:00:00\.000Z: /),
    ])
  })

  it('repeats a warning once a minute, with the number that was held back', async () => {
    const fixture = unheard()
    for (let n = 0; n < 40; n++) await fail(fixture, refused())
    expect(await messages()).toHaveLength(1)
    await fixture.clock.advanceAsync(60_000)
    await fail(fixture, refused())
    const [, second, ...rest] = await messages()
    expect(second).toContain('(39 more of these since the last warning)')
    expect(rest).toEqual([])
  })

  it('prints another cause at once, but no more than twenty-one in a minute', async () => {
    const fixture = unheard()
    await fail(fixture, refused())
    await fail(fixture, new Error('permission denied for table oncekey_record'))
    expect(await messages()).toHaveLength(2)
    for (let n = 0; n < 100; n++) await fail(fixture, new Error(`cause number ${n}`))
    expect(await messages()).toHaveLength(21)
  })

  it('tells what was rejected, and what was never sent, from a store that is down', async () => {
    const cause = new Error('too long')
    const of = (failure: 'rejected' | 'overloaded') =>
      new StoreFailedError({ store: 'x', operation: 'claim', failure, cause })
    const fixture = unheard()
    await fail(fixture, of('rejected'))
    await fail(fixture, of('overloaded'))
    expect(await messages()).toEqual([
      expect.stringMatching(/^The store rejects what it was given/),
      expect.stringMatching(/^More requests wait than the store can take/),
    ])
  })

  it('prints no password that a driver puts into its message', async () => {
    await fail(unheard(), new Error('cannot reach\npostgres://me:secret@db/keys'))
    const [message] = await messages()
    expect(message).toContain('cannot reach postgres://…@db/keys')
  })

  it('prints that a record became unknown, and what to do', async () => {
    const { run } = unheard()
    await run((context) => {
      context.outcomeUnknown()
      return bytes('x')
    })
    const [message] = await messages()
    expect(message).toMatch(/^Record [0-9a-f-]{36} of "pay" became unknown \(/)
    expect(message).toContain('say so with engine.resolve()')
  })

  it('prints that a record became unknown when a claim finds its lease over', async () => {
    const { run, node, clock } = unheard()
    void node()(() => new Promise<never>(() => undefined))
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_001)
    await run(() => bytes('x'))
    expect((await messages())[0]).toContain('became unknown (lease_lapsed)')
  })

  it('says that the reconciler looks into it where there is one', async () => {
    const { run, engine } = unheard()
    markReconciled(engine)
    await run((context) => {
      context.outcomeUnknown()
      return bytes('x')
    })
    expect((await messages())[0]).toMatch(/The reconciler looks into it\.$/)
  })

  it('prints that the reply of a record cannot be read', async () => {
    const { engine } = unheard()
    const subject = { identity: 'i', recordId: 'r-1', tenant: 't', operation: 'pay' }
    engine.emit({ kind: 'reply_unreadable', ...subject, reason: 'its checksum is wrong' })
    expect((await messages())[0]).toMatch(
      /^The reply of record r-1 of "pay" cannot be read \(its checksum is wrong\)/,
    )
  })

  it('prints which topic is paused, and what to do', async () => {
    const { engine } = unheard()
    engine.emit({ kind: 'work_paused', part: 'relay', name: 'mail', overdue: 50 })
    expect((await messages())[0]).toMatch(/^Topic "mail" is paused in this process.* 50 of them/)
  })

  it('prints that requests still come after close()', async () => {
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
