import { expect, it } from 'vitest'
import { newToken } from '../../../../src/core/record/identity.ts'
import type { PostgresStore } from '../../../../src/stores/postgres/index.ts'
import { planner, type PlannedCase } from '../planner.ts'
import { usePostgres } from '../setup.ts'

const setup = usePostgres()

const MESSAGES = 200_000
const BLOCKED = 50_000
const OPERATIONS = 20_000
const BATCH = 100

/** Unlogged tables are filled faster, and have the same plans. */
const FILL = `
  ALTER TABLE oncekey_record_phase SET UNLOGGED;
  ALTER TABLE oncekey_record_operation SET UNLOGGED;
  ALTER TABLE oncekey_record SET UNLOGGED;
  ALTER TABLE oncekey_record_message SET UNLOGGED;
  ALTER TABLE oncekey_record SET (autovacuum_enabled = false);
  ALTER TABLE oncekey_record_message SET (autovacuum_enabled = false);
  INSERT INTO oncekey_record_message
      (id, topic, partition, payload, state, created_at, due_at, ended_at)
    SELECT md5(n::text)::uuid, CASE WHEN n % 4 = 0 THEN 'other' ELSE 'plain' END,
      CASE WHEN n % 4 = 2 THEN 'p' || n END, '',
      CASE WHEN n % 2 = 0 THEN 'done' ELSE 'ready' END, now() - n * interval '1 ms',
      CASE WHEN n % 2 = 1 THEN now() - n * interval '1 ms' END,
      CASE WHEN n % 2 = 0 THEN now() - interval '1 day' + n * interval '1 ms' END
    FROM generate_series(1, ${2 * MESSAGES}) n;
  INSERT INTO oncekey_record_partition SELECT topic, partition FROM oncekey_record_message
    WHERE partition IS NOT NULL;
  INSERT INTO oncekey_record_message
      (id, topic, partition, payload, state, blocks, created_at, due_at, ended_at)
    SELECT md5('b' || n)::uuid, 'blocked', 'one', '', CASE WHEN n = 1 THEN 'dead' ELSE 'ready' END,
      n = 1, now(), CASE WHEN n > 1 THEN now() END, CASE WHEN n = 1 THEN now() END
    FROM generate_series(1, ${BLOCKED}) n;
  INSERT INTO oncekey_record_message (id, topic, partition, payload, created_at, due_at)
    SELECT md5('l' || n)::uuid, 'lanes', 'lane ' || n % 50, '', now(), now()
    FROM generate_series(1, ${BLOCKED}) n;
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, key, fingerprint, state,
      attempt, lapses, token, lease_until, on_lapse, after_expiry, created_at, last_run_at,
      expires_at, reconcile_at, recovery_point, run_name, run_version)
    SELECT decode(md5(n::text), 'hex'), md5(n::text)::uuid, 't', 'o', n::text, 'f',
      CASE n % 3 WHEN 0 THEN 'pending'::oncekey_record_state WHEN 1 THEN 'failed_retryable'
        ELSE 'unknown' END, 1, 0, '',
      now(), 'resume', 'new', now(), now(), now() + interval '1 hour', now() - n * interval '1 ms',
      'started', CASE WHEN n % 100 = 0 THEN 'rare' ELSE 'gone' END, 1
    FROM generate_series(1, ${OPERATIONS}) n;
  INSERT INTO oncekey_record_operation SELECT record_id, run_name, 1, '' FROM oncekey_record;
  INSERT INTO oncekey_record_phase (record_id, name, number, attempt, first_sent_at, sent_at, kind,
      state, downstream_key, provider_id)
    SELECT record_id, 'charge', 1, 1, now(), now(), 'external', 'intended', 'd' || key, 'p' || key
    FROM oncekey_record`

const claim = (topics: readonly string[]) => (store: PostgresStore) =>
  store.durable.outbox.claim({ topics, limit: BATCH, leaseMs: 60_000, token: newToken() })

const settled = async (store: PostgresStore, topics: readonly string[]) => {
  const held = await claim(topics)(store)
  expect(held.length).toBeGreaterThan(0)
  const { outbox } = store.durable
  expect(await outbox.renew(held, 60_000)).toEqual(held.map(() => true))
  const done = held.map(({ id, token }) => ({ id, token, kind: 'done', providerId: 'p' }) as const)
  expect(await outbox.settle(done)).toEqual(held.map(() => true))
}

const BY = { who: 'ada', why: 'to see' }

const CLAIM_BY = [
  'message_token',
  'message_lane',
  'lane_turn',
  'message_due',
  'message_turn',
  'message_pkey',
]

const CASES: readonly PlannedCase[] = [
  {
    name: 'claim, renew and settle from a backlog',
    by: CLAIM_BY,
    run: (store) => settled(store, ['plain']),
  },
  {
    name: 'claim from many topics',
    by: [...CLAIM_BY, 'message_held'],
    run: (store) => settled(store, ['plain', 'other', 'nothing', 'lanes']),
    // The claim reads the limit of each topic before it knows which messages are due longest.
    more: 2 * BATCH,
  },
  {
    name: 'claim from partitions',
    by: [...CLAIM_BY, 'message_held'],
    run: (store) => settled(store, ['lanes']),
  },
  {
    name: 'claim from a partition that is blocked',
    by: CLAIM_BY,
    run: async (store) => expect(await claim(['blocked'])(store)).toEqual([]),
  },
  {
    name: 'topics without a relay',
    by: ['message_due', 'message_lane'],
    run: async (store) => {
      const query = { topics: ['other'], overdueMs: 0, limit: BATCH }
      const found = await store.durable.outbox.unrelayed!(query)
      expect(found.map(({ topic }) => topic)).toEqual(['lanes', 'plain'])
    },
  },
  {
    name: 'list messages',
    by: ['message_list'],
    run: (store) => store.durable.outbox.list({ state: 'done', limit: BATCH }),
  },
  {
    name: 'prune',
    by: ['message_over', 'message_pkey', 'partition_pkey', 'message_lane'],
    run: async (store) =>
      expect(await store.durable.outbox.prune({ limit: BATCH, olderThanMs: 0 })).toBe(BATCH),
  },
  {
    name: 'find due operations with a rare name',
    by: ['due', 'due_turn', 'pkey'],
    run: async (store) => {
      const operations = [{ name: 'rare', version: 1 }]
      expect((await store.durable.phases.due({ operations, limit: BATCH })).length).toBe(BATCH)
    },
  },
  {
    name: 'orphans',
    by: ['due'],
    run: async (store) => {
      const operations = [{ name: 'gone', version: 1 }]
      const orphans = await store.durable.phases.orphans({ operations, limit: BATCH })
      expect(new Set(orphans.map(({ name }) => name))).toEqual(new Set(['rare']))
    },
  },
  {
    name: 'take unknown records',
    by: ['reconcile', 'unknown_turn', 'pkey', 'operation_pkey', 'phase_pkey'],
    run: async (store) => {
      const taken = await store.durable.operator.takeUnknown({ limit: BATCH, againMs: 1000 })
      expect(taken.every(({ operation }) => operation?.phases.length === 1)).toBe(true)
    },
    // One row beyond the limit shows that not all can be taken.
    more: 1,
  },
  {
    name: 'conclude an effect by its downstream key or provider id',
    by: ['phase_sent', 'phase_known', 'phase_pkey', 'record_id', 'pkey', 'operation_pkey'],
    run: async (store, from) => {
      const done = { kind: 'done', result: new Uint8Array(), providerId: undefined } as const
      for (const phase of [{ downstreamKey: `d${from + 2}` }, { providerId: `p${from + 5}` }]) {
        const act = { kind: 'conclude', phase, finding: done } as const
        expect(await store.durable.operator.act(act, BY)).toMatchObject({ kind: 'done' })
      }
    },
  },
  {
    name: 'audit',
    by: ['audit_about', 'audit_pkey'],
    run: async (store) => {
      const [entry] = await store.durable.operator.audit({ limit: 1 })
      await store.durable.operator.audit({ subject: entry!.subject, limit: 10 })
    },
  },
]

it(
  'finds messages and operations by index, analysed or not, beside any number of others',
  { timeout: 240_000 },
  async () => {
    const { open, url, app, column } = await setup()
    await open()
    await app.query(FILL)
    const planOf = await planner(url, { onlyRun: true })
    const look = async (from: number) => {
      for (const { name, run, by, more = 0 } of CASES) {
        const plan = await planOf((store) => run(store, from))
        const indexes = by.map((index) => `oncekey_record_${index}`)
        const others = [...plan.indexes].filter((index) => !indexes.includes(index))
        expect({ name, others }).toEqual({ name, others: [] })
        const kinds = [...plan.kinds].filter((kind) => /Hash Join|Merge Join|Bitmap/.test(kind))
        expect({ name, kinds }).toEqual({ name, kinds: [] })
        expect({ name, rows: plan.rowsMax }).toSatisfy(({ rows }) => rows <= BATCH + more)
      }
    }
    const analysed = `SELECT reltuples::int FROM pg_class WHERE relname = 'oncekey_record_message'`
    expect(await column(analysed)).toEqual([-1])
    await look(0)
    expect(await column(analysed)).toEqual([-1])
    await app.query('ANALYZE')
    await look(300)
  },
)
