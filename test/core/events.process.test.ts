import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { EVENT_COUNTERS, type EngineEvent, type RecordEvent } from '../../src/core/events.ts'
import {
  KEY,
  bytes,
  engineFixture,
  gate,
  heldWork,
  type EngineFixture,
} from './engine/engine-fixture.ts'

type Kind = RecordEvent['kind']

/** How to cause each kind of event. The compiler checks this list against the union. */
const CAUSES: Readonly<Record<Kind, (fixture: EngineFixture) => Promise<void>>> = {
  reserve_created: async ({ run }) => {
    await run(() => bytes('x'))
  },
  reserve_reused: async ({ run, clock }) => {
    await run(() => bytes('x'))
    await clock.advanceAsync(86_400_000)
    await run(() => bytes('x'))
  },
  reserve_replay: async ({ run }) => {
    await run(() => bytes('x'))
    await run(() => bytes('x'))
  },
  reserve_in_progress: async ({ run, clock }) => {
    void run(heldWork().work)
    await clock.advanceAsync(0)
    await run(() => bytes('x'))
  },
  reserve_key_misuse: async ({ run }) => {
    await run(() => bytes('x'))
    await run(() => bytes('x'), { fingerprint: 'another' })
  },
  reserve_failed_retry: async ({ run }) => {
    await run(() => ({ kind: 'release', result: bytes('x') }))
    await run(() => bytes('x'))
  },
  reserve_unknown: async ({ run }) => {
    await doubt({ run })
    await run(() => bytes('x'))
  },
  reserve_expired: async ({ run, engine, clock }) => {
    const policy = engine.policy({ afterExpiry: 'refuse' })
    await run(() => bytes('x'), { policy })
    await clock.advanceAsync(86_400_000)
    await run(() => bytes('x'), { policy })
  },
  store_error: async ({ run, store }) => {
    store.next('claim', 'fail')
    await run(() => bytes('x')).catch(() => undefined)
  },
  breaker_changed: failThrice,
  claim_refused: async (fixture) => {
    await failThrice(fixture)
    await fixture.run(() => bytes('x')).catch(() => undefined)
  },
  zombie_key: async ({ run, store, clock, engine }) => {
    store.always('renew', 'fail')
    void run(heldWork().work)
    await clock.advanceAsync(60_000)
    await engine.sweep()
  },
  // Emitted by the guard, which knows the format of replies.
  reply_unreadable: async ({ engine, run, record }) => {
    await run(() => bytes('x'))
    const { identity, tenant, operation, recordId } = (await record())!
    const subject = { identity, tenant, operation, recordId }
    engine.emit({ kind: 'reply_unreadable', ...subject, reason: 'damaged' })
  },
  ttl_pruned: async ({ run, clock, engine }) => {
    await run(() => bytes('x'))
    await clock.advanceAsync(86_400_000)
    await engine.reap()
  },
  reconcile_scheduled: ({ run }) => doubt({ run }),
  reconcile_resolved: async ({ run, engine }) => {
    await doubt({ run })
    const [record] = await engine.list({ state: 'unknown' })
    await engine.resolve({ recordId: record!.recordId }, { kind: 'failed_retryable' })
  },
  reconcile_failed: async ({ engine }) => {
    await engine.resolve({ recordId: 'absent' }, { kind: 'failed_retryable' })
  },
  lease_lost: async ({ run, store, clock }) => {
    store.always('renew', 'fail')
    void run(heldWork().work)
    await clock.advanceAsync(60_000)
  },
  settle_fenced: async ({ run, store, clock, records }) => {
    store.always('renew', 'fail')
    const { work, fail } = heldWork()
    const running = run(work).catch(() => undefined)
    await clock.advanceAsync(60_000)
    await records.sweep({ limit: 1 })
    fail(new Error('x'))
    await running
  },
  settle_late: async ({ run, store, clock }) => {
    store.always('settle', 'fail')
    run(() => bytes('x')).catch(() => undefined)
    await clock.advanceAsync(5_000)
  },
  settle_abandoned: async ({ run, store, clock, engine }) => {
    store.always('settle', 'fail')
    run(() => bytes('x')).catch(() => undefined)
    await clock.advanceAsync(5_000)
    await engine.close({ graceMs: 0 })
    await clock.advanceAsync(0)
  },
  // The guard and the status handler apply limits and report them through the engine.
  request_refused: async ({ engine }) => {
    const scope = { tenant: 'acme', operation: 'pay' }
    engine.emit({ kind: 'request_refused', ...scope, reason: 'new_keys' })
  },
  limiter_failed: async ({ engine }) => {
    const scope = { tenant: 'acme', operation: 'pay' }
    engine.emit({ kind: 'limiter_failed', ...scope, limit: 'look_ups', error: new Error('x') })
  },
  encryption_failed: async ({ run }) => {
    const keep = (plain: Uint8Array) => plain
    const prepare = () => Promise.reject(new Error('the key service is down'))
    await run(() => bytes('x'), { encryption: { prepare, encrypt: keep, decrypt: keep } })
  },
  // The engine never runs unprotected; an adapter that does reports it through the engine.
  unprotected_run: async ({ engine }) => {
    engine.emit({ kind: 'unprotected_run', tenant: 'acme', operation: 'pay' })
  },
}

async function failThrice({ run, store }: EngineFixture): Promise<void> {
  store.always('claim', 'fail')
  for (let n = 0; n < 3; n++) await run(() => bytes('x')).catch(() => undefined)
}

async function doubt({ run }: Pick<EngineFixture, 'run'>): Promise<void> {
  await run((context) => {
    context.outcomeUnknown()
    return bytes('x')
  })
}

describe('every event', () => {
  const kinds = Object.keys(EVENT_COUNTERS)

  it.each(Object.keys(CAUSES) as Kind[])(
    'the event %s can be caused, and does not contain the raw key',
    async (kind) => {
      const fixture = engineFixture()
      await CAUSES[kind](fixture)
      expect(fixture.kinds()).toContain(kind)
      for (const event of fixture.events) {
        expect(textOf(event)).not.toContain(KEY)
        if ('identity' in event) {
          expect(event.identity).toMatch(/^[0-9a-f]{32}$/)
          expect(event).toMatchObject({ tenant: 'acme', operation: 'pay' })
          expect(event.recordId).toMatch(/^[0-9a-f-]{36}$/)
        }
      }
    },
  )

  it('every event has a separate counter', () => {
    const counters = Object.values(EVENT_COUNTERS)
    expect(new Set(counters).size).toBe(counters.length)
    expect(kinds).toEqual(expect.arrayContaining(Object.keys(CAUSES)))
    for (const counter of counters) expect(counter).toMatch(/^api\.idempotency\.[a-z_.]+\.count$/)
  })

  it('every event is emitted in the sources', () => {
    const root = join(import.meta.dirname, '../../src')
    const sources = readdirSync(root, { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('.ts') && !file.endsWith('events.ts'))
      .concat('core/engine/claim-events.ts')
      .map((file) => readFileSync(join(root, file), 'utf8'))
      .join('\n')
    for (const kind of kinds) expect(sources).toMatch(new RegExp(`['"]${kind}['"]`))
  })
})

/** Includes the fields of errors, which JSON leaves out. */
function textOf(event: EngineEvent): string {
  return JSON.stringify(event, (_, value: unknown) =>
    value instanceof Error ? [value.message, value.stack, value.cause] : value,
  )
}

describe('a listener', () => {
  const warnings: Error[] = []
  process.on('warning', (warning) => warnings.push(warning))

  it.each([
    [
      'throws',
      () => {
        throw new Error('a bug in the listener')
      },
    ],
    [
      'throws a value that is not an Error',
      () => {
        throw Object.create(null)
      },
    ],
    ['rejects', () => Promise.reject(new Error('a bug in the listener'))],
  ] as [string, () => void][])('a listener that %s changes nothing', async (_, onEvent) => {
    const { run, clock, store } = engineFixture({ onEvent })
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'ran' })
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'replayed' })
    store.next('settle', 'fail')
    const running = run(() => bytes('y'), { key: 'another' })
    await clock.advanceAsync(50)
    expect(await running).toMatchObject({ kind: 'ran' })
    expect(clock.pendingTimers).toBe(0)
  })

  it('a listener that throws causes one warning for each kind of event', async () => {
    await new Promise((resolve) => {
      setImmediate(resolve)
    })
    const about = (kind: Kind) =>
      warnings.filter(({ message }) => message.includes(`onEvent threw on "${kind}"`))
    expect(about('reserve_created')).toHaveLength(1)
    expect(about('reserve_replay')).toHaveLength(1)
  })

  it('a slow listener delays nothing', async () => {
    const slow = (): unknown => gate().opened
    const { run } = engineFixture({ onEvent: slow })
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'ran' })
  })
})

it('an engine without a listener works the same', async () => {
  const { run } = engineFixture({ onEvent: undefined as never })
  expect(await run(() => bytes('x'))).toMatchObject({ kind: 'ran' })
  expect(await run(() => bytes('x'))).toMatchObject({ kind: 'replayed' })
})
