// Takes about 18 s.
import { hash } from 'node:crypto'
import type pg from 'pg'
import { expect, it } from 'vitest'
import type { PostgresStore } from '../../../src/stores/postgres/index.ts'
import {
  bytes,
  claimRequest,
  claimRequests,
  completeOf,
  RETENTION_MS,
} from '../../../src/testing/store-cases/store-case.ts'
import { planner } from './planner.ts'
import { usePostgres } from './setup.ts'

const setup = usePostgres()

const RECORDS = 1_000_000
const BATCH = 50

/** The state of each record by its number, so that each call finds records to work on. */
const STATES = `CASE
    WHEN n % 100 = 1 THEN 'in_progress'::oncekey_record_state
    WHEN n % 100 = 2 THEN 'failed_retryable'
    WHEN n % 1000 = 3 THEN 'unknown' WHEN n % 1000 = 4 THEN 'pending'
    WHEN n % 1000 = 5 THEN 'expired' ELSE 'completed' END`

/** An unlogged table without a fillfactor is filled faster, and has the same plans. */
async function fill(app: pg.Pool): Promise<void> {
  await app.query(`
    ALTER TABLE oncekey_record_phase SET UNLOGGED;
    ALTER TABLE oncekey_record_operation SET UNLOGGED;
    ALTER TABLE oncekey_record SET UNLOGGED;
    ALTER TABLE oncekey_record SET (autovacuum_enabled = false, fillfactor = 100);
    ALTER TABLE oncekey_record_history SET UNLOGGED;
    ALTER TABLE oncekey_record_history SET (autovacuum_enabled = false);
    INSERT INTO oncekey_record (identity, record_id, tenant, operation, key, fingerprint, state,
      attempt, lapses, token, lease_until, on_lapse, after_expiry, created_at, last_run_at,
      expires_at, reconcile_at)
    SELECT decode(md5(n::text), 'hex'), md5(n::text)::uuid, 't', 'o', n::text, 'f', ${STATES}, 1, 0,
      '', now() + (CASE WHEN n % 200 = 1 THEN '-1 h' ELSE '1 h' END)::interval, 'rerun', 'new',
      now(), now() - n * interval '1 ms',
      now() + (CASE WHEN n % 50 = 4 OR n % 1000 = 5 THEN '-1 h' ELSE '1 h' END)::interval
        + n * interval '1 ms',
      CASE WHEN n % 1000 = 3 THEN now() - n * interval '1 ms' END
    FROM generate_series(1, ${RECORDS}) n;
    INSERT INTO oncekey_record_history (identity, record_id, tenant, operation, key, fingerprint,
      attempt, lapses, lease_until, on_lapse, after_expiry, created_at, last_run_at, expires_at)
    SELECT decode(md5((n / 2)::text), 'hex'), md5('h' || n)::uuid, 't', 'o', n::text, 'f', 1, 0,
      now(), 'rerun', 'new', now() - n * interval '1 ms', now(), now()
    FROM generate_series(1, ${RECORDS / 10}) n`)
}

/** Claims on existing records whose number leaves the remainder `rest` when divided by 1,000. */
function claimsOn(rest: number, { from }: { readonly from: number }) {
  return Array.from({ length: BATCH }, (_, n) => {
    const key = `${(from + n) * 1000 + rest}`
    const names = { tenant: 't', operation: 'o', fingerprint: 'f' }
    return claimRequest({ identity: hash('md5', key), ...names, key, onLapse: 'rerun' })
  })
}

interface Case {
  readonly name: string
  readonly run: (store: PostgresStore, client: pg.Client, from: number) => Promise<unknown>
  /** The indexes that the call may use. */
  readonly by: readonly string[]
  /** Rows that one node may read, beyond the batch or the limit. */
  readonly more?: number
}

const ABANDONED = { result: bytes('too late'), retentionMs: RETENTION_MS }
/** Locked rows are found by their place, without an index. */
const PLACE = 'Tid Scan'
const VERDICT = { kind: 'failed_retryable' } as const

/** Records in progress are listed by the index of leases, because they are few at any time. */
const IN_PROGRESS = RECORDS / 50

const CASES: readonly Case[] = [
  {
    name: 'claim free keys, settle and renew them',
    by: ['pkey'],
    run: async (store, _client, from) => {
      const requests = claimRequests(BATCH, { tenant: `${from}` })
      expect((await store.claim(requests)).every(({ kind }) => kind === 'claimed')).toBe(true)
      const leases = requests.map(({ identity, token }) => ({ identity, token, attempt: 1 }))
      await store.renew(leases.map((lease) => ({ ...lease, leaseMs: 1000 })))
      await store.settle(leases.map((lease) => completeOf(lease)))
    },
  },
  {
    name: 'claim a free key, settle it and repeat both',
    by: ['pkey'],
    run: async (store, _client, from) => {
      const request = claimRequest({ tenant: `single ${from}` })
      const { identity, token } = request
      const settlement = completeOf({ identity, token, attempt: 1 })
      expect(await store.claim([request])).toMatchObject([{ kind: 'claimed', from: 'new' }])
      for (const _ of [1, 2]) {
        expect(await store.settle([settlement])).toMatchObject([{ kind: 'settled' }])
      }
      expect(await store.claim([request])).toMatchObject([{ kind: 'completed' }])
    },
  },
  {
    name: 'claim a single lapsed key',
    by: ['pkey'],
    run: async (store, _client, from) => {
      const [request] = claimsOn(401, { from })
      expect(await store.claim([request!])).toMatchObject([{ kind: 'claimed', from: 'lapsed' }])
    },
  },
  {
    name: 'claim completed keys',
    by: ['pkey'],
    run: async (store, _client, from) => {
      const outcomes = await store.claim(claimsOn(7, { from }))
      expect(outcomes.every(({ kind }) => kind === 'completed')).toBe(true)
    },
  },
  {
    name: 'look keys up',
    by: ['pkey'],
    run: async (store, _client, from) => {
      const requests = claimsOn(7, { from }).map((one) => ({ ...one, mode: 'find' as const }))
      const outcomes = await store.claim(requests)
      expect(outcomes.every(({ kind }) => kind === 'completed')).toBe(true)
    },
  },
  ...(
    [
      ['released', 2, 'retry'],
      ['lapsed', 1, 'lapsed'],
      ['expired', 54, 'expired'],
      ['tombstoned', 5, 'expired'],
    ] as const
  ).map(([what, rest, how]) => ({
    name: `claim ${what} keys`,
    // Replacing a record deletes its operation.
    by: how === 'expired' ? ['pkey', 'operation_pkey'] : ['pkey'],
    run: async (store: PostgresStore, _client: pg.Client, from: number) => {
      const outcomes = await store.claim(claimsOn(rest, { from }))
      expect(new Set(outcomes.map((one) => one.kind === 'claimed' && one.from))).toEqual(
        new Set([how]),
      )
    },
  })),
  {
    name: 'watch',
    by: ['pkey'],
    run: (_store, client, from) =>
      client.query('SELECT * FROM oncekey_record_watch($1::bytea[])', [
        claimsOn(101, { from }).map(({ identity }) => Buffer.from(identity, 'hex')),
      ]),
  },
  { name: 'sweep', by: ['lease', 'pkey'], run: (store) => store.sweep({ limit: BATCH }) },
  {
    name: 'reap expired records by ctid',
    // Removing a record deletes its operation.
    by: ['expiry', 'tombstone', PLACE, 'operation_pkey'],
    run: async (store) => {
      expect((await store.reap({ limit: BATCH })).removed).toBe(BATCH)
    },
  },
  {
    name: 'reap abandoned records',
    by: ['pending', 'pkey', 'expiry', 'tombstone', PLACE],
    run: async (store) => {
      const report = await store.reap({ limit: 3 * BATCH, abandoned: ABANDONED })
      expect(report.removed + report.abandoned).toBe(3 * BATCH)
    },
    more: 2 * BATCH,
  },
  {
    name: 'resolve',
    by: ['pkey', 'record_id'],
    run: async (store, _client, from) => {
      const refs = claimsOn(3, { from }).map(({ identity }, n) =>
        n % 2 === 0 ? { identity } : { recordId: toUuid(identity) },
      )
      const verdicts = refs.map((ref) => ({ ref, verdict: VERDICT, retentionMs: RETENTION_MS }))
      const outcomes = await store.resolve(verdicts)
      expect(outcomes.every(({ kind }) => kind === 'resolved')).toBe(true)
    },
  },
  {
    name: 'read',
    by: ['pkey', 'record_id'],
    run: async (store, _client, from) => {
      const { identity } = claimsOn(8, { from })[0]!
      const views = [
        await store.read({ identity }),
        await store.read({ recordId: toUuid(identity) }),
      ]
      expect(views.map((view) => view?.state)).toEqual(['completed', 'completed'])
    },
  },
  {
    name: 'list in_progress',
    by: ['lease'],
    run: (store) => store.list({ state: 'in_progress', limit: BATCH }),
    more: IN_PROGRESS,
  },
  ...(['completed', 'failed_retryable', 'unknown', 'pending', 'expired'] as const).map(
    (state): Case => ({
      name: `list ${state}`,
      by: [state === 'completed' ? 'expiry' : 'listed'],
      run: async (store) => {
        expect((await store.list({ state, limit: BATCH })).length).toBe(BATCH)
      },
      more: BATCH,
    }),
  ),
  {
    name: 'take due unknown records',
    by: ['reconcile'],
    run: (_store, client) =>
      client.query(`SELECT identity FROM oncekey_record
        WHERE state = 'unknown' AND reconcile_at <= now() ORDER BY reconcile_at LIMIT ${BATCH}`),
  },
  {
    name: 'read the history',
    by: ['history_key', 'history_pkey'],
    run: async (store) => {
      const views = await store.history!({ ref: { identity: hash('md5', '77') }, limit: 10 })
      expect(views.length).toBe(2)
      const { recordId } = views[0]!
      expect((await store.history!({ ref: { recordId }, limit: 10 })).length).toBe(1)
    },
  },
]

it(
  'uses an index for every call on a million records, analyzed or not',
  { timeout: 240_000 },
  async () => {
    const { open, url, app, column } = await setup()
    await open()
    await fill(app)
    const planOf = await planner(url)
    const look = async (from: number) => {
      for (const { name, run, by, more = 0 } of CASES) {
        const plan = await planOf((store, client) => run(store, client, from))
        const indexes = by.map((index) => (index === PLACE ? index : `oncekey_record_${index}`))
        const others = [...plan.indexes].filter((index) => !indexes.includes(index))
        expect({ name, others }).toEqual({ name, others: [] })
        expect({ name, indexes: [...plan.indexes].toSorted() }).toEqual({
          name,
          indexes: indexes.toSorted(),
        })
        const kinds = [...plan.kinds].filter((kind) => /Seq Scan|Hash Join|Merge|Bitmap/.test(kind))
        expect({ name, kinds }).toEqual({ name, kinds: [] })
        expect({ name, rows: plan.rowsMax }).toSatisfy(({ rows }) => rows <= BATCH + more)
      }
    }
    const analysed = `SELECT reltuples::int FROM pg_class WHERE relname = 'oncekey_record'`
    expect(await column(analysed)).toEqual([-1])
    await look(0)
    expect(await column(analysed)).toEqual([-1])
    await app.query('ANALYZE oncekey_record, oncekey_record_history')
    await look(2 * BATCH)
  },
)

function toUuid(hex: string): string {
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}
