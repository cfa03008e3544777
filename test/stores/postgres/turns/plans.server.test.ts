import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { newToken } from '../../../../src/core/record/identity.ts'
import type { PostgresStore } from '../../../../src/stores/postgres/index.ts'
import { planner } from '../planner.ts'
import { usePostgres } from '../setup.ts'

const setup = usePostgres()

const FEW = 500
const MANY = process.env['ONCEKEY_TEST_FULL'] === '1' ? 1_000_000 : 20_000
const LIMIT = 20

/** `count` rows of tenant `a` and three of each of ten others, all due and never analyzed. */
const fill = (count: number) => `
  ALTER TABLE oncekey_record_phase SET UNLOGGED;
  ALTER TABLE oncekey_record_operation SET UNLOGGED;
  ALTER TABLE oncekey_record SET UNLOGGED;
  ALTER TABLE oncekey_record_message SET UNLOGGED;
  ALTER TABLE oncekey_record SET (autovacuum_enabled = false);
  ALTER TABLE oncekey_record_message SET (autovacuum_enabled = false);
  CREATE TABLE work AS
    SELECT n, CASE WHEN n <= ${count} THEN 'a' ELSE 'other ' || n % 10 END AS tenant,
      now() - interval '1 day' + n * interval '1 ms' AS at
    FROM generate_series(1, ${count} + 30) n;
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, key, fingerprint, state,
      attempt, lapses, token, lease_until, on_lapse, after_expiry, created_at, last_run_at,
      expires_at, reconcile_at, recovery_point, run_name, run_version)
    SELECT decode(md5(state || n), 'hex'), md5(state || n)::uuid, tenant, 'scope', n::text, 'f',
      state::oncekey_record_state, 1, 0, '', now(), 'resume', 'new', now(), now(),
      now() + interval '1 hour', at, 'started', 'pay', 1
    FROM work, unnest(ARRAY['pending', 'unknown']) AS state;
  INSERT INTO oncekey_record_message (id, topic, tenant, partition, payload, created_at, due_at)
    SELECT md5(topic || n)::uuid, topic, tenant,
      CASE topic WHEN 'lanes' THEN tenant || ' ' || n % 50 END, '', now(), at
    FROM work, unnest(ARRAY['plain', 'lanes']) AS topic`

const OPERATIONS = [{ name: 'pay', version: 1 }]

const claim =
  (topics: readonly string[], more: object = {}) =>
  (store: PostgresStore) =>
    store.durable.outbox.claim({
      topics,
      limit: LIMIT,
      leaseMs: 60_000,
      token: newToken(),
      ...more,
    })

type Call = (store: PostgresStore, client: pg.Client) => Promise<readonly unknown[]>

const WITHOUT_A = { withoutTenants: ['a'] }

const CALLS: Readonly<Record<string, Call>> = {
  due: (store) => store.durable.phases.due({ operations: OPERATIONS, limit: LIMIT }),
  'due, without the tenant that has most': (store) =>
    store.durable.phases.due({ operations: OPERATIONS, limit: LIMIT, ...WITHOUT_A }),
  'due, for one': (store) => store.durable.phases.due({ operations: OPERATIONS, limit: 1 }),
  takeUnknown: (store) => store.durable.operator.takeUnknown({ limit: LIMIT, againMs: 1000 }),
  'takeUnknown, without the tenant that has most': (store) =>
    store.durable.operator.takeUnknown({ limit: LIMIT, againMs: 1000, ...WITHOUT_A }),
  'claim of a topic': claim(['plain']),
  'claim of a topic, without the tenant that has most': claim(['plain'], WITHOUT_A),
  'claim of partitions': claim(['lanes']),
  'claim of partitions, without the tenant that has most': claim(['lanes'], WITHOUT_A),
  'claim of topics': claim(['plain', 'lanes', 'none']),
}

const OLD_CLAIM = `SELECT * FROM oncekey_record_message_claim(NULL, $1, '{NULL,NULL}', ${LIMIT},
  60000, $2, NULL)`

/** The calls of nodes of older versions. */
const OLD_CALLS: Readonly<Record<string, Call>> = {
  'due of an older node': async (_, client) =>
    (await client.query(`SELECT * FROM oncekey_record_due(NULL, '{pay}', '{1}', ${LIMIT})`)).rows,
  'takeUnknown of an older node': async (_, client) =>
    (await client.query(`SELECT * FROM oncekey_record_take_unknown(NULL, ${LIMIT}, 1000)`)).rows,
  'claim of an older node': async (_, client) =>
    (await client.query(OLD_CLAIM, [['plain', 'lanes'], newToken()])).rows,
  'orphans of an older node': async (_, client) =>
    (await client.query(`SELECT * FROM oncekey_record_orphans(NULL, '{}', '{}', ${LIMIT})`)).rows,
}

/** Counts the rows that each call reads while one tenant has `count` rows waiting. */
async function readAt(count: number, calls: Readonly<Record<string, Call>>) {
  const { open, url, app, column } = await setup()
  await open()
  await app.query(fill(count))
  const planOf = await planner(url, { onlyRun: true })
  const read: Record<string, number> = {}
  for (const [name, call] of Object.entries(calls)) {
    const plan = await planOf(async (store, client) => {
      expect({ name, found: (await call(store, client)).length > 0 }).toEqual({ name, found: true })
    })
    read[name] = plan.rows
    const scans = [...plan.indexes].filter((index) => !index.startsWith('oncekey_record_'))
    expect({ name, scans }).toEqual({ name, scans: [] })
    if (calls !== OLD_CALLS) continue
    const turns = [...plan.indexes].filter((index) => index.endsWith('_turn'))
    expect({ name, turns }).toEqual({ name, turns: [] })
  }
  const analysed = `SELECT reltuples::int FROM pg_class WHERE relname = 'oncekey_record'`
  expect(await column(analysed)).toEqual([-1])
  return read
}

describe.each([
  ['calls', CALLS],
  ['calls of older nodes', OLD_CALLS],
])('%s', (_, calls) => {
  it(
    `read no more rows if one tenant has ${MANY} waiting than if it has ${FEW}`,
    { timeout: 600_000 },
    async () => {
      const few = await readAt(FEW, calls)
      expect(await readAt(MANY, calls)).toEqual(few)
      for (const [name, rows] of Object.entries(few)) {
        expect({ name, rows }).toSatisfy((one) => one.rows <= 40 * LIMIT)
      }
    },
  )
})
