/** An engine on a filled table, which sweeps and reaps only on demand. */
import { randomUUID } from 'node:crypto'
import type { Pool } from 'pg'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { Engine } from '../../src/core/engine/engine-contract.ts'
import { postgresStore } from '../../src/stores/postgres/index.ts'
import type { Figures } from '../report/results.ts'
import { quantile } from '../report/statistics.ts'
import type { Load, Places, Program } from '../run/contract.ts'
import { insertRows } from '../run/fill.ts'
import { measure } from '../run/measure.ts'
import { expectEqual } from '../run/subject.ts'
import { FINGERPRINT, REPLY_BYTES, SCOPE } from '../run/work.ts'
import { openPool } from '../subjects/stores.ts'
import { collectedBytes } from './http.ts'

/** Batch size of the engine's reap. */
const BATCH = 100
/** Batch size of the engine's sweep. */
const SWEEP_BATCH = 1_000
const CALLS = 20
/** The pause of the engine after a batch, as a multiple of its duration. */
const REST_FACTOR = 9
/** Far below the capacity of the server, so that the measured difference is not CPU contention. */
const CLAIMS_PER_SECOND = 400

export interface GrowthConfig {
  readonly places: Places
  /** Numbers above this have not been used to fill the table. */
  readonly rows: number
}

export async function open({ places, rows }: GrowthConfig): Promise<Program> {
  const pool = openPool(places)
  const store = postgresStore({ pool })
  await store.migrate()
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
  let planted = rows
  /** Creates records that lapse minutes after their claim, with their pages still in memory. */
  const plant = async () => {
    await insertRows(pool, { from: planted + 1, rows: BATCH * CALLS, kind: 'lapsed' })
    planted += BATCH * CALLS
  }
  const sweep = async () => {
    await plant()
    return timed(async () => {
      expectEqual('records swept', (await store.sweep({ limit: BATCH })).length, BATCH)
    })
  }
  const sweepIdle = () =>
    timed(async () => {
      expectEqual('records swept', (await store.sweep({ limit: SWEEP_BATCH })).length, 0)
    })
  const reap = () =>
    timed(async () => {
      expectEqual('records reaped', (await store.reap({ limit: BATCH })).removed, BATCH)
    })
  return {
    calls: {
      touch: () => touchIndexes(pool),
      first: (load: Load) => measure(() => runOnce(engine), load),
      paced: ({ ms }: { ms: number }) => paced(engine, ms),
      pacedReaping: ({ ms }: { ms: number }) => pacedReaping(engine, ms),
      memory: ({ requests }: { requests: number }) => memory(engine, requests),
      sweep,
      sweepIdle,
      reap,
    },
    async close() {
      await engine.close({ graceMs: 1_000 })
      await store.close()
      await pool.end()
    },
  }
}

/**
 * Loads the indexes into memory, where those of a live table are. The table is idle for minutes
 * among dozens of processes, and its pages are evicted.
 */
async function touchIndexes(pool: Pool): Promise<void> {
  await pool.query('CREATE EXTENSION IF NOT EXISTS pg_prewarm')
  await pool.query(`
    SELECT pg_prewarm(indexrelid::regclass, 'read') FROM pg_index
    WHERE indrelid = 'oncekey_record'::regclass`)
}

async function runOnce(engine: Engine, work: () => unknown = () => undefined): Promise<void> {
  const request = { scope: SCOPE, key: randomUUID(), fingerprint: FINGERPRINT }
  const outcome = await engine.run(request, async () => {
    await work()
    return REPLY_BYTES
  })
  expectEqual('the outcome', outcome.kind, 'ran')
}

async function timed(call: () => Promise<void>): Promise<Figures> {
  const waits: number[] = []
  for (let n = 0; n < CALLS; n++) {
    const started = performance.now()
    await call()
    waits.push(performance.now() - started)
  }
  return { p50: quantile(waits, 0.5), p99: quantile(waits, 0.99) }
}

/** Sends requests at a steady rate, independent of earlier ones. Measures until the work starts. */
async function paced(engine: Engine, ms: number): Promise<Figures> {
  const waits: number[] = []
  const runs: Promise<unknown>[] = []
  const started = performance.now()
  const count = (ms / 1_000) * CLAIMS_PER_SECOND
  for (let n = 0; n < count; n++) {
    const dueMs = started + (n * 1_000) / CLAIMS_PER_SECOND
    const restMs = dueMs - performance.now()
    if (restMs > 0) await new Promise((resolve) => setTimeout(resolve, restMs))
    const sent = performance.now()
    runs.push(runOnce(engine, () => waits.push(performance.now() - sent)))
  }
  await Promise.all(runs)
  return { p50: quantile(waits, 0.5), p99: quantile(waits, 0.99) }
}

/**
 * The same during reaping at the pace of the engine, whose own pass would last longer than the
 * round. A batch without work would measure nothing, so it is an error.
 */
async function pacedReaping(engine: Engine, ms: number): Promise<Figures> {
  const over = new AbortController()
  const reapOn = async () => {
    while (!over.signal.aborted) {
      const started = performance.now()
      const { removed } = await engine.store.reap({ limit: BATCH })
      expectEqual('records reaped', removed, BATCH)
      const restMs = REST_FACTOR * (performance.now() - started)
      await new Promise((resolve) => setTimeout(resolve, restMs))
    }
  }
  const reaping = reapOn()
  const figures = await paced(engine, ms)
  over.abort()
  await reaping
  return figures
}

/** The memory of one more request while its work runs, in bytes. */
async function memory(engine: Engine, requests: number): Promise<Figures> {
  const before = await collectedBytes()
  const held = Promise.withResolvers<void>()
  let entered = 0
  const all = Promise.withResolvers<void>()
  const work = () => {
    if (++entered === requests) all.resolve()
    return held.promise
  }
  const runs = Array.from({ length: requests }, () => runOnce(engine, work))
  await all.promise
  const during = await collectedBytes()
  held.resolve()
  await Promise.all(runs)
  return { bytes: (during - before) / requests }
}
