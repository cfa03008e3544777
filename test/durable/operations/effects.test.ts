/** Faults between an operation and its provider, and their effect on the charge. */
import { describe, expect, it } from 'vitest'
import { NotExecutedError } from '../../../src/core/errors.ts'
import { defineOperation } from '../../../src/durable/index.ts'
import { askable, durableFixture, payment } from './durable-fixture.ts'
import { entriesOf } from '../reconciliation/entries.ts'
import type { Charge } from './provider.ts'

const MINUTE_MS = 60_000
/** A promise that never settles. */
const never = () => new Promise<never>(() => undefined)

/** A charge effect without reconcile. */
function blind(provider: ReturnType<typeof durableFixture>['provider']) {
  const { send, result } = askable(provider)
  return { send, result: result! }
}

describe('an error before the effect', () => {
  it('calls reconcile at once after a failed send, but not_found is no proof yet', async () => {
    const { run, record, provider } = durableFixture()
    provider.faults.push('error before effect')
    const pay = payment(askable(provider))
    await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await record(pay)).toMatchObject({ state: 'unknown', recoveryPoint: 'record' })
    expect(provider.questions).toHaveLength(1)
    expect(await run(pay, { amount: 1 })).toEqual({ kind: 'unknown' })
    expect(provider.calls).toHaveLength(1)
  })

  it('sends the effect again after a NotExecutedError', async () => {
    const { run, record, provider } = durableFixture()
    let refusals = 1
    const pay = payment({
      ...blind(provider),
      send: async ({ request, downstreamKey }) => {
        if (refusals-- > 0) throw new NotExecutedError('no connection')
        return (await provider.charge(request, downstreamKey)) as Charge
      },
    })
    await expect(run(pay, { amount: 1 })).rejects.toThrow('no connection')
    expect(await record(pay)).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    expect(await run(pay, { amount: 1 })).toMatchObject({ status: 201 })
    expect(provider.ledger).toHaveLength(1)
  })
})

describe('an effect whose answer is lost', () => {
  it('finds an effect whose answer was lost at once, and the client gets its reply', async () => {
    const { run, provider, kinds } = durableFixture()
    provider.faults.push('effect then lost')
    const pay = payment(askable(provider))
    expect(await run(pay, { amount: 1 })).toMatchObject({ status: 201, body: { chargeId: 'ch_1' } })
    expect(provider.calls).toHaveLength(1)
    expect(kinds()).toContain('effect_found')
  })

  it('leaves a lost effect without reconcile unknown, and never sends it again', async () => {
    const { run, record, provider } = durableFixture()
    provider.faults.push('effect then lost')
    const pay = payment(blind(provider))
    await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect((await record(pay)).state).toBe('unknown')
    expect(provider.ledger).toHaveLength(1)
  })

  it('sends a lost effect again with the same key within resendWithinMs', async () => {
    const { run, provider, path } = durableFixture()
    provider.faults.push('effect then lost')
    const pay = payment({ ...blind(provider), resendWithinMs: MINUTE_MS })
    await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
    expect(await run(pay, { amount: 1 })).toMatchObject({ status: 201 })
    expect(new Set(provider.calls).size).toBe(1)
    expect(provider.ledger).toHaveLength(1)
    expect(entriesOf(path)).toEqual(['recorded', 'succeeded'])
  })

  it('does not send a lost effect again after resendWithinMs', async () => {
    const { run, record, provider, clock } = durableFixture()
    provider.faults.push('effect then lost')
    const pay = payment({ ...blind(provider), resendWithinMs: MINUTE_MS })
    await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
    provider.forgetKeys()
    await clock.advanceAsync(MINUTE_MS)
    await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect((await record(pay)).state).toBe('unknown')
    expect(provider.calls).toHaveLength(1)
  })

  it('counts resendWithinMs from the first send', async () => {
    const { run, provider, clock } = durableFixture()
    const pay = payment({ ...blind(provider), resendWithinMs: MINUTE_MS })
    provider.faults.push('error before effect', 'error before effect', 'error before effect')
    await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
    await clock.advanceAsync(MINUTE_MS - 1)
    await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
    await clock.advanceAsync(1)
    await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(provider.calls).toHaveLength(2)
  })
})

describe('an effect that is sent again', () => {
  it('keeps an effect open if only its second send was not executed', async () => {
    const { run, record, provider, clock } = durableFixture()
    provider.faults.push('effect then lost')
    let calls = 0
    const pay = payment({
      ...blind(provider),
      resendWithinMs: MINUTE_MS,
      send: async ({ request, downstreamKey }) => {
        if (++calls === 2) throw new NotExecutedError('no connection')
        return (await provider.charge(request, downstreamKey)) as Charge
      },
    })
    await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
    await expect(run(pay, { amount: 1 })).rejects.toThrow('no connection')
    provider.forgetKeys()
    await clock.advanceAsync(MINUTE_MS)
    await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect((await record(pay)).state).toBe('unknown')
    expect(provider.ledger).toHaveLength(1)
  })

  it('does not send an effect again if resendWithinMs ended during reconcile', async () => {
    const { run, record, provider, clock } = durableFixture()
    provider.faults.push('effect then lost')
    let takesMs = 0
    const pay = payment({
      ...blind(provider),
      resendWithinMs: MINUTE_MS,
      timeoutMs: 10 * MINUTE_MS,
      reconcile: async () => {
        await clock.advanceAsync(takesMs)
        return { kind: 'pending' }
      },
    })
    await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
    await clock.advanceAsync(MINUTE_MS / 2)
    provider.forgetKeys()
    takesMs = MINUTE_MS / 2
    await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect((await record(pay)).state).toBe('unknown')
    expect(provider.ledger).toHaveLength(1)
  })
})

describe('an invalid answer', () => {
  it('treats an invalid answer as lost and calls reconcile', async () => {
    const { run, provider } = durableFixture()
    provider.faults.push('effect then garbage')
    const pay = payment(askable(provider))
    expect(await run(pay, { amount: 1 })).toMatchObject({ status: 201 })
    expect(provider.ledger).toHaveLength(1)
  })

  it('leaves an effect with an invalid answer unknown without reconcile', async () => {
    const { run, record, provider } = durableFixture()
    provider.faults.push('effect then garbage')
    const pay = payment(blind(provider))
    await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect((await record(pay)).state).toBe('unknown')
  })
})

describe('an answer that never comes', () => {
  it('aborts the signal of send after timeoutMs and calls reconcile', async () => {
    const { run, provider, clock } = durableFixture()
    let aborted = false
    const sent = Promise.withResolvers<void>()
    const pay = payment({
      ...askable(provider),
      timeoutMs: 5_000,
      send: async ({ request, downstreamKey, signal }) => {
        await provider.charge(request, downstreamKey)
        signal.addEventListener('abort', () => (aborted = true))
        sent.resolve()
        return new Promise<never>(() => undefined)
      },
    })
    const ended = run(pay, { amount: 1 })
    await sent.promise
    await clock.advanceAsync(5_000)
    expect(await ended).toMatchObject({ status: 201 })
    expect(aborted).toBe(true)
  })

  it('leaves the outcome unknown if reconcile exceeds timeoutMs', async () => {
    const { run, record, provider, clock } = durableFixture()
    provider.faults.push('effect then lost')
    const asked = Promise.withResolvers<AbortSignal>()
    const pay = payment({
      ...blind(provider),
      timeoutMs: 5_000,
      reconcile: ({ signal }) => {
        asked.resolve(signal)
        return never()
      },
    })
    const ended = run(pay, { amount: 1 }).catch((error: unknown) => error)
    const signal = await asked.promise
    await clock.advanceAsync(5_000)
    expect(await ended).toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(signal.aborted).toBe(true)
    expect((await record(pay)).state).toBe('unknown')
  })

  it('leaves the outcome unknown if the clock of the store does not answer', async () => {
    const { run, record, provider, clock, store } = durableFixture()
    provider.faults.push('effect then lost')
    const asked = Promise.withResolvers<void>()
    store.now = () => {
      asked.resolve()
      return never()
    }
    const pay = payment(askable(provider))
    const ended = run(pay, { amount: 1 }).catch((error: unknown) => error)
    await asked.promise
    await clock.advanceAsync(5_000)
    expect(await ended).toMatchObject({ code: 'STORE_FAILED' })
    expect(await record(pay)).toMatchObject({ state: 'unknown', errorCode: 'effect_unknown' })
  })
})

describe('a result that comes after the end of its lease', () => {
  /** The provider answers when the test lets it. */
  function slow(fixture: ReturnType<typeof durableFixture>) {
    const [sent, answers] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const pay = payment({
      ...blind(fixture.provider),
      timeoutMs: 10 * MINUTE_MS,
      send: async ({ request, downstreamKey }) => {
        sent.resolve()
        await answers.promise
        return (await fixture.provider.charge(request, downstreamKey)) as Charge
      },
    })
    return { pay, sent: sent.promise, answer: answers.resolve }
  }

  it('records the result of an operation that ran too long if the key is free', async () => {
    const fixture = durableFixture({ runTimeoutMs: 30_000 })
    const { pay, sent, answer } = slow(fixture)
    const ended = fixture.run(pay, { amount: 1 })
    await sent
    await fixture.clock.advanceAsync(30_000)
    expect(await ended).toEqual({ kind: 'in_progress' })
    answer()
    await until(async () => (await fixture.record(pay)).state === 'failed_retryable')
    expect(await fixture.run(pay, { amount: 1 })).toMatchObject({ kind: 'ran', status: 201 })
    expect(fixture.provider.calls).toHaveLength(1)
  })

  it('records a late result after failed renewals if the key is free', async () => {
    const fixture = durableFixture()
    const { store, clock } = fixture
    const { pay, sent, answer } = slow(fixture)
    const ended = fixture.run(pay, { amount: 1 }).catch((error: unknown) => error)
    await sent
    store.renew = () => Promise.reject(new Error('the database is gone'))
    for (let n = 0; n < 70; n++) await clock.advanceAsync(1_000)
    answer()
    expect(await ended).toMatchObject({ code: 'LEASE_LOST' })
    const after = await fixture.record(pay)
    expect(after).toMatchObject({ state: 'failed_retryable', recoveryPoint: 'charge' })
  })

  it('drops a late result if another process has the key', async () => {
    const fixture = durableFixture()
    const { store, clock, engine, record } = fixture
    const { pay, sent, answer } = slow(fixture)
    const ended = fixture.run(pay, { amount: 1 }).catch((error: unknown) => error)
    await sent
    store.renew = async (renewals) => renewals.map(() => false)
    for (let n = 0; n < 70; n++) await clock.advanceAsync(1_000)
    await engine.sweep()
    await expect(fixture.run(pay, { amount: 1 })).rejects.toMatchObject({
      code: 'OUTCOME_UNKNOWN',
    })
    answer()
    expect(await ended).toMatchObject({ code: 'LEASE_LOST' })
    expect(await record(pay)).toMatchObject({ state: 'unknown', recoveryPoint: 'record' })
  })
})

describe('an invalid provider id', () => {
  it.each([['x'.repeat(256)], ['a\0b'], ['\ud800'], [''], [42]])(
    'records a result without the invalid provider id %j',
    async (id) => {
      const { run, record, provider, store } = durableFixture()
      const pay = payment({ ...blind(provider), providerId: () => id as never })
      expect(await run(pay, { amount: 1 })).toMatchObject({ kind: 'ran', status: 201 })
      const { phases } = (await store.durable.phases.load((await record(pay)).recordId))!
      const charge = phases.find(({ name }) => name === 'charge')
      expect(charge).toMatchObject({ state: 'done', providerId: undefined })
    },
  )
})

describe('a stored 500 of the provider', () => {
  it('keeps an effect unknown while the provider repeats its stored 500', async () => {
    const { run, record, provider, clock } = durableFixture()
    provider.faults.push('stored 500')
    const pay = payment({ ...blind(provider), resendWithinMs: MINUTE_MS })
    await expect(run(pay, { amount: 1 })).rejects.toThrow('500 from the provider')
    await expect(run(pay, { amount: 1 })).rejects.toThrow('500 from the provider')
    await clock.advanceAsync(MINUTE_MS)
    await expect(run(pay, { amount: 1 })).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect((await record(pay)).state).toBe('unknown')
    expect(provider.ledger).toHaveLength(0)
  })
})

describe('a declined charge', () => {
  it('records a declined charge as a result, and replays its reply', async () => {
    const { run, provider } = durableFixture()
    provider.faults.push('declined')
    const pay = payment(askable(provider))
    const first = await run(pay, { amount: 1 })
    expect(first).toMatchObject({ kind: 'ran', status: 402, body: { status: 'declined' } })
    expect(await run(pay, { amount: 1 })).toEqual({ ...first, kind: 'replayed' })
    expect(provider.calls).toHaveLength(1)
  })
})

describe('the request of an effect', () => {
  it('sends the recorded request although the code now builds another one', async () => {
    const { run, provider } = durableFixture()
    let price = 1
    const requests: unknown[] = []
    const pay = defineOperation({
      name: 'pay',
      effects: {
        charge: {
          send: async ({
            request,
            downstreamKey,
          }: {
            request: { amount: number }
            downstreamKey: string
          }) => {
            requests.push(request)
            return provider.charge(request, downstreamKey)
          },
          resendWithinMs: MINUTE_MS,
        },
      },
      async run(op) {
        await op.external('charge', { amount: price++ })
        return { status: 200, body: {} }
      },
    })
    provider.faults.push('error before effect')
    await expect(run(pay, undefined)).rejects.toThrow('socket hang up')
    await run(pay, undefined)
    expect(requests).toEqual([{ amount: 1 }, { amount: 1 }])
  })

  it('uses another downstream key for each phase and each record', async () => {
    const { run, provider } = durableFixture()
    const send = ({ downstreamKey }: { downstreamKey: string }) =>
      provider.charge({ amount: 1 }, downstreamKey)
    const pay = defineOperation({
      name: 'pay',
      effects: { one: { send }, two: { send } },
      async run(op) {
        await op.external('one', undefined)
        await op.external('two', undefined)
        return { status: 200, body: {} }
      },
    })
    await run(pay, undefined, 'first')
    await run(pay, undefined, 'second')
    expect(new Set(provider.calls).size).toBe(4)
    for (const key of provider.calls) expect(key.length).toBeLessThanOrEqual(64)
  })

  it('checks a request before it is committed or sent', async () => {
    const { run, record, provider } = durableFixture()
    const pay = payment({
      ...askable(provider),
      request: {
        '~standard': {
          version: 1,
          vendor: 'test',
          validate: () => ({ issues: [{ message: 'must be positive', path: ['amount'] }] }),
        },
      },
    })
    await expect(run(pay, { amount: -1 })).rejects.toThrow(/amount: must be positive/)
    expect(provider.calls).toEqual([])
    expect(await record(pay)).toMatchObject({ state: 'failed_retryable', recoveryPoint: 'record' })
  })
})

describe('a result that cannot be recorded', () => {
  it('records a result again after store failures, and sends nothing twice', async () => {
    const { run, provider, store, clock } = durableFixture()
    const { phases } = store.durable
    const record = phases.record.bind(phases)
    let failures = 2
    phases.record = async (lease, step) => {
      if (step.phase?.kind === 'result' && failures-- > 0) throw new Error('the disk is busy')
      return record(lease, step)
    }
    const pay = payment(askable(provider))
    const ended = run(pay, { amount: 1 })
    for (let n = 0; n < 20; n++) await clock.advanceAsync(50)
    expect(await ended).toMatchObject({ status: 201 })
    expect(provider.calls).toHaveLength(1)
  })

  it('reconciles an effect later if its result cannot be recorded', async () => {
    const { run, record: read, provider, store, clock } = durableFixture()
    const { phases } = store.durable
    const record = phases.record.bind(phases)
    phases.record = async (lease, step) => {
      if (step.phase?.kind === 'result') throw new Error('the disk is gone')
      return record(lease, step)
    }
    const pay = payment(askable(provider))
    const ended = run(pay, { amount: 1 })
    const failed = ended.catch((error: unknown) => error)
    for (let n = 0; n < 20; n++) await clock.advanceAsync(500)
    expect(String(await failed)).toMatch(/the disk is gone/)
    expect(await read(pay)).toMatchObject({ state: 'unknown', errorCode: 'result_not_recorded' })
    expect(provider.ledger).toHaveLength(1)
  })
})

async function until(isSo: () => Promise<boolean>): Promise<void> {
  for (let n = 0; n < 10_000; n++) {
    if (await isSo()) return
    await new Promise<void>((resolve) => setImmediate(resolve))
  }
  throw new Error('it never came')
}
