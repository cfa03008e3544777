import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import {
  ledgerJob,
  type LedgerJobOptions,
  type LedgerPeriod,
} from '../../../src/durable/reconciliation/ledger-job.ts'
import type { LedgerEntry, LedgerReport } from '../../../src/durable/reconciliation/ledger.ts'
import { operatorFixture, type OperatorFixture } from '../operator/operator-fixture.ts'
import { flipping } from '../../http/reply/encryptions.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const SCOPE = { tenant: 'oncekey', operation: 'ledger charges' }

type Options = LedgerJobOptions<LedgerEntry, LedgerEntry>

function setup(options: Partial<Options> = {}) {
  const fixture = operatorFixture()
  const compared: string[] = []
  const reports: [LedgerReport, LedgerPeriod][] = []
  const job = (changes: Partial<Options> = {}) =>
    ledgerJob({
      engine: fixture.engine,
      name: 'charges',
      ours: ({ from }) => {
        compared.push(from.toISOString().slice(0, 10))
        return [{ id: 'a' }, { id: 'b' }]
      },
      theirs: () => [{ id: 'a' }, { id: 'c' }],
      onReport: (report, period) => void reports.push([report, period]),
      periodsBack: 1,
      ...options,
      ...changes,
    })
  return { ...fixture, fixture, compared, reports, job }
}

/** The record of a period, as an operator would find it. */
async function recordOf({ engine }: OperatorFixture, from: string, to: string) {
  return engine.read({ scope: SCOPE, key: `${from}T00:00:00.000Z/${to}T00:00:00.000Z` })
}

describe('a ledger job', () => {
  it('compares the last full day and passes on its report', async () => {
    const { job, reports, heard, clock } = setup()
    await clock.advanceAsync(HOUR_MS)
    const [run, ...more] = await job().runOnce()
    expect(run).toEqual({
      kind: 'compared',
      from: new Date('2025-12-31'),
      to: new Date('2026-01-01'),
    })
    expect(more).toEqual([])
    const [[report, period]] = reports as [(typeof reports)[0]]
    expect(report).toMatchObject({
      matched: 1,
      missing_theirs: { count: 1 },
      missing_ours: { count: 1 },
    })
    expect(period.from).toEqual(run!.from)
    expect(heard('ledger_compared')).toEqual([
      { kind: 'ledger_compared', ledger: 'charges', matched: 1, different: 2 },
    ])
  })

  it('needs no key service: its record has no data of a tenant', async () => {
    const fixture = operatorFixture({
      engineOptions: {
        encryption: { ...flipping, prepare: () => Promise.reject(new Error('no')) },
      },
    })
    const { job } = setup({ engine: fixture.engine })
    expect(await job().runOnce()).toMatchObject([{ kind: 'compared' }])
    expect(fixture.heard('encryption_failed')).toEqual([])
  })

  it('compares a day only after delayMs', async () => {
    const { job, compared, clock } = setup()
    await clock.advanceAsync(HOUR_MS - 1)
    await job().runOnce()
    expect(compared).toEqual(['2025-12-30'])
    await clock.advanceAsync(1)
    await job().runOnce()
    expect(compared).toEqual(['2025-12-30', '2025-12-31'])
  })

  it('compares a day once, for any number of nodes and calls', async () => {
    const { job, compared, reports, clock } = setup()
    await clock.advanceAsync(HOUR_MS)
    const runs = await Promise.all([job(), job(), job()].map((node) => node.runOnce()))
    const kinds = runs.map(([run]) => run!.kind)
    expect(kinds.toSorted()).toEqual(['compared', 'elsewhere', 'elsewhere'])
    expect((await job().runOnce())[0]!.kind).toBe('already')
    await clock.advanceAsync(22 * HOUR_MS)
    expect((await job().runOnce())[0]!.kind).toBe('already')
    expect([compared.length, reports.length]).toEqual([1, 1])
  })

  it('compares days that were missed while all nodes were down', async () => {
    const { job, compared, clock } = setup({ periodsBack: 3 })
    await clock.advanceAsync(HOUR_MS)
    await job().runOnce()
    await clock.advanceAsync(3 * DAY_MS)
    const runs = await job().runOnce()
    expect(runs.map(({ kind }) => kind)).toEqual(['compared', 'compared', 'compared'])
    expect(compared).toEqual([
      ...['2025-12-29', '2025-12-30', '2025-12-31'],
      ...['2026-01-01', '2026-01-02', '2026-01-03'],
    ])
    await clock.advanceAsync(DAY_MS)
    const kinds = (await job().runOnce()).map(({ kind }) => kind)
    expect(kinds).toEqual(['already', 'already', 'compared'])
  })
})

describe('a period', () => {
  it('compares a period again after its reader failed', async () => {
    const { job, reports, clock, fixture } = setup()
    await clock.advanceAsync(HOUR_MS)
    const broken = job({
      theirs: () => {
        throw new Error('the provider is down')
      },
    })
    await expect(broken.runOnce()).rejects.toThrow('the provider is down')
    const record = await recordOf(fixture, '2025-12-31', '2026-01-01')
    expect(record).toMatchObject({ state: 'failed_retryable' })
    expect((await job().runOnce())[0]!.kind).toBe('compared')
    expect(reports).toHaveLength(1)
  })

  it('compares a period again after its reader lost the connection', async () => {
    const { job, clock } = setup()
    await clock.advanceAsync(HOUR_MS)
    const error = Object.assign(new Error('reset'), { code: 'ECONNRESET' })
    const broken = job({
      ours: () => {
        throw error
      },
    })
    await expect(broken.runOnce()).rejects.toThrow('reset')
    expect((await job().runOnce())[0]!.kind).toBe('compared')
  })

  it('compares a period again after onReport threw', async () => {
    const { job, reports, clock } = setup()
    await clock.advanceAsync(HOUR_MS)
    const onReport = async () => {
      throw new Error('no mail')
    }
    await expect(job({ onReport }).runOnce()).rejects.toThrow('no mail')
    await job().runOnce()
    expect(reports).toHaveLength(1)
  })

  it('aborts a comparison after runTimeoutMs and starts it again', async () => {
    const { job, reports, clock } = setup({ runTimeoutMs: 60_000 })
    await clock.advanceAsync(HOUR_MS)
    const entered = Promise.withResolvers<AbortSignal>()
    const hanging = job({
      async *ours({ signal }) {
        entered.resolve(signal)
        yield { id: 'a' }
        await new Promise(() => {})
      },
    }).runOnce()
    const ended = hanging.then(
      ([run]) => run!.kind,
      () => 'failed',
    )
    const signal = await entered.promise
    await clock.advanceAsync(60_000)
    expect(signal.aborted).toBe(true)
    expect(await ended).not.toBe('compared')
    await clock.advanceAsync(60_000)
    expect((await job().runOnce())[0]!.kind).toBe('compared')
    expect(reports).toHaveLength(1)
  })

  it('compares other periods if one cannot be compared', async () => {
    const { job, reports, clock } = setup({ periodsBack: 3 })
    await clock.advanceAsync(HOUR_MS)
    const broken = job({
      ours: ({ from }) => {
        const isFirst = from.getTime() === Date.UTC(2025, 11, 29)
        return isFirst ? [{ id: 'b' }, { id: 'a' }] : []
      },
    })
    await expect(broken.runOnce()).rejects.toThrow(/not sorted/)
    expect(reports.map(([, { from }]) => from)).toEqual([
      new Date('2025-12-30'),
      new Date('2025-12-31'),
    ])
    const theirs = () => {
      throw new Error('the provider is down')
    }
    await clock.advanceAsync(2 * DAY_MS)
    await expect(job({ theirs }).runOnce()).rejects.toThrow(
      '2 periods of the ledger "charges" could not be compared',
    )
  })

  // The node is killed during the comparison: its lease lapses, and the next pass of any node
  // compares the period again.
  it('compares a period on another node after its node crashed', async () => {
    const { job, store, clock, reports, fixture } = setup()
    await clock.advanceAsync(HOUR_MS)
    const dying = createEngine({ store, clock, sweepEveryMs: 0, reapEveryMs: 0 })
    const entered = Promise.withResolvers<void>()
    async function* hanging(): AsyncGenerator<LedgerEntry> {
      entered.resolve()
      await new Promise(() => {})
      yield { id: 'never' }
    }
    const dead = job({ engine: dying, ours: hanging })
    // Renewals do not reach the store any more.
    const { renew } = store
    store.renew = async (renewals) => renewals.map(() => false)
    dead.runOnce().catch(() => {})
    await entered.promise
    expect((await job().runOnce())[0]!.kind).toBe('elsewhere')
    await clock.advanceAsync(61_000)
    store.renew = renew
    expect((await job().runOnce())[0]!.kind).toBe('compared')
    expect(reports).toHaveLength(1)
    const record = await recordOf(fixture, '2025-12-31', '2026-01-01')
    expect(record).toMatchObject({ state: 'completed', attempt: 2 })
  })
})

it.each([
  [{ name: '' }, /name must not be empty/],
  [{ name: 'a\0b' }, /name must not contain NUL/],
  [{ samplesMax: -1 }, /ledgerJob.samplesMax must be a whole number from 0/],
  [{ everyMs: 366 * DAY_MS, periodsBack: 12 }, /nearly ten years/],
  [{ ours: [] }, /ours must be a function/],
  [{ everyMs: 5 }, /everyMs must be a whole number from 60000/],
  [{ periodsBack: 0 }, /periodsBack/],
  [{ onreport: () => {} }, /has no option "onreport"/],
  [{ engine: {} }, /engine must be/],
])('ledgerJob rejects %j', (options, message) => {
  const { job } = setup()
  expect(() => job(options as never)).toThrow(message)
})
