import { expect, it } from 'vitest'
import * as durable from '../../src/stores/sqlite/durable-sql.ts'
import * as sql from '../../src/stores/sqlite/sql.ts'
import * as turns from '../../src/stores/sqlite/turn-sql.ts'
import { setup } from './sqlite-setup.ts'

it.each([
  ['sweep', sql.LAPSED, [0, 1], 'oncekey_record_lease (lease_until_ms<?)'],
  ['reap', sql.EXPIRED, [0, 1], 'oncekey_record_expiry (expires_at_ms<?)'],
  ['reap of what was abandoned', sql.ABANDONED, [0, 1], 'oncekey_record_pending (expires_at_ms<?)'],
  ['list', sql.LIST, ['unknown', 1], 'oncekey_record_list (state=?)'],
  ['claim', sql.FIND, [new Uint8Array(16)], 'oncekey_record_identity (identity=?)'],
  [
    'a worker',
    durable.DUE,
    ['pay', 1, 0, 1],
    'oncekey_record_due (run_name=? AND run_version=? AND reconcile_at_ms>? AND reconcile_at_ms<?)',
  ],
  [
    'the reconciler',
    turns.LONGEST_UNKNOWN,
    [0, 1],
    'oncekey_record_unknown (reconcile_at_ms>? AND reconcile_at_ms<?)',
  ],
  ['read', sql.FIND_BY_RECORD_ID, ['id'], 'oncekey_record_record_id (record_id=?)'],
] as const)(
  'finds what %s needs by an index, in a table never analysed',
  (_, text, values, index) => {
    const { app } = setup()
    const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
    const steps = plan.all(...values).map((row) => row['detail'])
    expect(steps).toEqual([`SEARCH oncekey_record USING INDEX ${index}`])
  },
)

it('looks at leases from before the clock was set back by their index', () => {
  const { app } = setup()
  const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', sql.AHEAD)}`)
  expect(plan.all(0, 1, 1).map((row) => row['detail'])).toEqual([
    'CO-ROUTINE (subquery-1)',
    'SEARCH oncekey_record USING INDEX oncekey_record_lease (lease_until_ms>?)',
    'SCAN (subquery-1)',
  ])
})

const BY_DUE_TIME = 'topic=? AND due_at_ms>? AND due_at_ms<?'

it.each([
  ['claim', durable.DUE_MESSAGES, 'message', `COVERING INDEX {table}_message_due (${BY_DUE_TIME})`],
  ['repeated claim', durable.HELD_MESSAGES, 'message', 'INDEX {table}_message_token (token=?)'],
  ['settlement', durable.FIND_MESSAGE, 'message', 'INDEX {table}_message_id (id=?)'],
  [
    'lane that goes on',
    durable.FIRST_OF_LANE,
    'message',
    'COVERING INDEX {table}_message_lane (topic=? AND lane=?)',
  ],
  [
    'lane with a message that comes back',
    durable.FIND_HEAD,
    'message',
    'INDEX {table}_message_lane (topic=? AND lane=?)',
  ],
  ['list of messages', durable.LIST_MESSAGES, 'message', 'INDEX {table}_message_state (state=?)'],
  ['pruning', durable.ENDED_MESSAGES, 'message', 'INDEX {table}_message_ended (ended_at_ms<?)'],
  [
    'webhook with a downstream key',
    durable.FIND_PHASE_BY_DOWNSTREAM_KEY,
    'phase',
    'INDEX {table}_phase_downstream (downstream_key=?)',
  ],
  [
    "webhook with a provider's id",
    durable.FIND_PHASE_BY_PROVIDER_ID,
    'phase',
    'INDEX {table}_phase_provider (provider_id=?)',
  ],
  ['audit of a record', durable.LIST_AUDIT_OF, 'audit', 'INDEX {table}_audit_subject (subject=?)'],
] as const)('finds what a %s needs by an index, and need not sort it', (_, text, table, index) => {
  const { app } = setup()
  const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
  const steps = plan.all().map((row) => row['detail'])
  const used = sql.forTable('oncekey_record', index)
  // Numbered as the rows of its table are, so the newest is first without sorting.
  expect(steps).toEqual([`SEARCH oncekey_record_${table} USING ${used}`])
})

it.each([
  ['version', durable.NEXT_VERSION, 'run_name=? AND run_version>?'],
  ['name', durable.NEXT_NAME, 'run_name>?'],
])('steps to the next %s of operations that are due, past all records between', (_, text, how) => {
  const { app } = setup()
  const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
  const steps = plan.all().map((row) => row['detail'])
  expect(steps).toEqual([`SEARCH oncekey_record USING INDEX oncekey_record_due (${how})`])
})

const DUE_TURN = '{table}_due_turn (run_name=? AND run_version=?'
const UNKNOWN_TURN = '{table}_unknown_turn (<expr>=?'
const MESSAGE_TURN = '{table}_message_turn (topic=?'
const RECORD_DUE = 'reconcile_at_ms>? AND reconcile_at_ms<?'
const MESSAGE_DUE = 'due_at_ms>? AND due_at_ms<?'

it.each([
  [
    'IS_DUE',
    turns.IS_DUE,
    '{table}',
    `{table}_due (run_name=? AND run_version=? AND ${RECORD_DUE})`,
  ],
  ['NEXT_DUE_TENANT', turns.NEXT_DUE_TENANT, '{table}', `${DUE_TURN} AND tenant>?)`],
  ['DUE_OF_TENANT', turns.DUE_OF_TENANT, '{table}', `${DUE_TURN} AND tenant=? AND ${RECORD_DUE})`],
  ['NEXT_UNKNOWN_NAME', turns.NEXT_UNKNOWN_NAME, '{table}', '{table}_unknown_turn (<expr>>?)'],
  ['NEXT_UNKNOWN_VERSION', turns.NEXT_UNKNOWN_VERSION, '{table}', `${UNKNOWN_TURN} AND <expr>>?)`],
  [
    'NEXT_UNKNOWN_TENANT',
    turns.NEXT_UNKNOWN_TENANT,
    '{table}',
    `${UNKNOWN_TURN} AND <expr>=? AND tenant>?)`,
  ],
  [
    'UNKNOWN_OF_TENANT',
    turns.UNKNOWN_OF_TENANT,
    '{table}',
    `${UNKNOWN_TURN} AND <expr>=? AND tenant=? AND ${RECORD_DUE})`,
  ],
  [
    'LONGEST_DUE',
    turns.LONGEST_DUE,
    '{table}',
    `{table}_due (run_name=? AND run_version=? AND ${RECORD_DUE})`,
  ],
  ['LONGEST_UNKNOWN', turns.LONGEST_UNKNOWN, '{table}', `{table}_unknown (${RECORD_DUE})`],
  ['FIRST_MESSAGE_TENANT', turns.FIRST_MESSAGE_TENANT, '{table}_message', `${MESSAGE_TURN})`],
  [
    'NEXT_MESSAGE_TENANT',
    turns.NEXT_MESSAGE_TENANT,
    '{table}_message',
    `${MESSAGE_TURN} AND <expr>>?)`,
  ],
  [
    'MESSAGES_OF_TENANT',
    turns.MESSAGES_OF_TENANT,
    '{table}_message',
    `${MESSAGE_TURN} AND <expr>=? AND ${MESSAGE_DUE})`,
  ],
  [
    'LONGEST_DUE_MESSAGES',
    turns.LONGEST_DUE_MESSAGES,
    '{table}_message',
    `{table}_message_due (topic=? AND ${MESSAGE_DUE})`,
  ],
] as const)('takes turns by an index, and need not sort: %s', (_, text, table, index) => {
  const { app } = setup()
  const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
  const expected = sql.forTable('oncekey_record', `SEARCH ${table} USING INDEX ${index}`)
  expect(plan.all().map((row) => row['detail'])).toEqual([expected])
})

it('knows the plan of every statement of the turns', () => {
  expect(Object.keys(turns)).toHaveLength(13)
})

// A column of a message lies behind its payload: one look at it walks through all of that.
it.each([
  ['FIRST_MESSAGE_TENANT', turns.FIRST_MESSAGE_TENANT],
  ['NEXT_MESSAGE_TENANT', turns.NEXT_MESSAGE_TENANT],
  ['MESSAGES_OF_TENANT', turns.MESSAGES_OF_TENANT],
])('reads nothing but the index for %s', (_, text) => {
  const { app } = setup()
  const program = app.prepare(`EXPLAIN ${sql.forTable('oncekey_record', text)}`).all()
  // The table is cursor 0. Its row is only sought when a column of it is read.
  const columns = program.filter((step) => step['opcode'] === 'Column')
  expect(columns.length).toBeGreaterThan(0)
  expect(columns.filter((step) => step['p1'] === 0)).toEqual([])
})

it.each([
  ['records', sql.GET_RECORDS, 'oncekey_record USING INTEGER PRIMARY KEY (rowid=?)'],
  ['messages', durable.GET_MESSAGES, 'oncekey_record_message USING INTEGER PRIMARY KEY (rowid=?)'],
  [
    'settled messages',
    durable.FIND_MESSAGES,
    'oncekey_record_message USING INDEX {table}_message_id (id=?)',
  ],
])('reads the %s that were chosen, and no others', (_, text, how) => {
  const { app } = setup()
  const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
  const steps = plan.all().map((row) => row['detail'])
  expect(steps[0]).toBe(`SEARCH ${sql.forTable('oncekey_record', how)}`)
  expect(steps.filter((step) => String(step).startsWith('SEARCH oncekey'))).toHaveLength(1)
})

// SQLite looks at a number that is given for LIMIT alone when it plans, and plans anew with each.
it('plans no statement on due work anew for another limit', () => {
  const texts = [...Object.values(turns), ...Object.values(durable)].map(String)
  expect(texts.filter((text) => /LIMIT \?/.test(text))).toEqual([])
})

it('adds a message without a walk over those that wait in its partition', () => {
  const { app } = setup()
  const text = sql.forTable('oncekey_record', durable.INSERT_MESSAGE)
  const steps = app
    .prepare(`EXPLAIN QUERY PLAN ${text}`)
    .all()
    .map((row) => row['detail'])
  const index = 'oncekey_record_message_lane (topic=? AND lane=?)'
  expect(steps).toContain(`SEARCH oncekey_record_message USING COVERING INDEX ${index}`)
})

it.each([
  ['identity', sql.HISTORY, new Uint8Array(16)],
  ['record_id', sql.HISTORY_BY_RECORD_ID, 'id'],
] as const)(
  'finds the history of one %s by an index, and need not sort it',
  (column, text, value) => {
    const { app } = setup()
    const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
    const steps = plan.all(value, 1).map((row) => row['detail'])
    const index = `oncekey_record_history_${column} (${column}=?)`
    expect(steps).toEqual([`SEARCH oncekey_record_history USING INDEX ${index}`])
  },
)

it.each([
  ['INSERT', sql.INSERT],
  ['INSERT_PENDING', sql.INSERT_PENDING],
  ['COMPLETE', sql.COMPLETE],
  ['UPDATE', sql.UPDATE],
  ['DELETE', sql.DELETE],
  ['INSERT_MESSAGE', durable.INSERT_MESSAGE],
  ['UPDATE_MESSAGE', durable.UPDATE_MESSAGE],
  ['HOLD_MESSAGE', durable.HOLD_MESSAGE],
  ['PUT_PHASE', durable.PUT_PHASE],
])('checks the words of a row without a temporary index on %s', (_, text) => {
  const { app } = setup()
  const program = app.prepare(`EXPLAIN ${sql.forTable('oncekey_record', text)}`).all()
  const opened = program.filter((step) => String(step['opcode']).startsWith('OpenEphemeral'))
  expect(program.length).toBeGreaterThan(0)
  expect(opened).toEqual([])
})
