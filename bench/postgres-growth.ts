import { randomUUID } from 'node:crypto'
import type { Pool } from 'pg'
import { createEngine, type Engine } from '../src/core/engine.ts'
import { postgresStore } from '../src/stores/postgres/index.ts'
import { FINGERPRINT, pairsPerSecond, RESULT, type Contest } from './contest.ts'
import type { Servers } from './servers.ts'

const FEW = 10_000
const MANY = 5_000_000
const EXPIRED = 1_000_000
const FILL_ROWS = 250_000
/** Far below what the server can take: what reaping adds is then not the price of a full CPU. */
const CLAIMS_PER_SECOND = 400

/** The cost of a claim in a large table against a small one: the inverse of their speeds. */
export async function growth(servers: Servers): Promise<Contest> {
  const few = await filled(servers, FEW, '1 day')
  const many = await filled(servers, MANY, '1 day')
  return {
    name: `PostgreSQL, µs a pair at ${MANY} records against ${FEW}`,
    target: { atMost: 1.6 },
    unit: 'µs a pair',
    ours: async (ms) => 1_000_000 / (await pairsPerSecond(many, ms)),
    theirs: async (ms) => 1_000_000 / (await pairsPerSecond(few, ms)),
  }
}

/** The slowest of a hundred claims while expired records are removed, against while none are. */
export async function reaping(servers: Servers): Promise<Contest> {
  const engine = await filled(servers, EXPIRED, '-1 day')
  return {
    name: `PostgreSQL, p99 of claims while ${EXPIRED} expired records are reaped, and while not`,
    target: { atMost: 1.2 },
    unit: 'ms',
    ours: async (ms) => {
      const stop = reapOn(engine)
      const p99 = await claimP99(engine, ms)
      await stop()
      return p99
    },
    theirs: (ms) => claimP99(engine, ms),
  }
}

/** Reaps until told to stop; a pass without work would measure nothing, so it is an error. */
function reapOn(engine: Engine): () => Promise<void> {
  const over = new AbortController()
  const passes = (async () => {
    while (!over.signal.aborted) {
      const reaped = await engine.reap()
      if (reaped === 0) throw new Error('nothing was left to reap')
    }
  })()
  return async () => {
    over.abort()
    await passes
  }
}

/** Requests at a steady pace, whatever becomes of the earlier ones; until the work is entered. */
async function claimP99(engine: Engine, ms: number): Promise<number> {
  const waits: number[] = []
  const runs: Promise<unknown>[] = []
  const started = performance.now()
  const count = (ms / 1_000) * CLAIMS_PER_SECOND
  for (let n = 0; n < count; n++) {
    const dueMs = started + (n * 1_000) / CLAIMS_PER_SECOND
    const restMs = dueMs - performance.now()
    if (restMs > 0) await new Promise((resolve) => setTimeout(resolve, restMs))
    const request = {
      scope: { tenant: 'bench', operation: 'POST /payments' },
      key: randomUUID(),
      fingerprint: FINGERPRINT,
    }
    const sent = performance.now()
    const work = () => {
      waits.push(performance.now() - sent)
      return RESULT
    }
    runs.push(engine.run(request, work))
  }
  await Promise.all(runs)
  return waits.toSorted((a, b) => a - b)[Math.floor(waits.length * 0.99)]!
}

async function filled({ freshPool }: Servers, rows: number, expiresIn: string): Promise<Engine> {
  const pool = await freshPool()
  const store = postgresStore({ pool })
  await store.migrate()
  for (let from = 1; from <= rows; from += FILL_ROWS) {
    const to = Math.min(rows, from + FILL_ROWS - 1)
    await fill(pool, { from, to, expiresIn })
    console.log(`  filling: ${to.toLocaleString('en')} of ${rows.toLocaleString('en')} records`)
  }
  await pool.query('CHECKPOINT')
  return createEngine({ store })
}

async function fill(
  pool: Pool,
  { from, to, expiresIn }: { from: number; to: number; expiresIn: string },
): Promise<void> {
  await pool.query(
    `INSERT INTO oncekey_record (identity, record_id, attempt, lapses, lease_until, created_at,
       last_run_at, completed_at, expires_at, state, on_lapse, after_expiry, token, fingerprint,
       tenant, operation, key, result)
     SELECT decode(md5(n::text), 'hex'), gen_random_uuid(), 1, 0, now(), now(), now(), now(),
       now() + $3::interval + n * interval '1 microsecond', 'completed', 'unknown', 'new',
       md5((-n)::text), $4, 'bench', 'POST /payments', gen_random_uuid()::text, $5
     FROM generate_series($1::int, $2::int) n`,
    [from, to, expiresIn, FINGERPRINT, Buffer.from(RESULT)],
  )
}
