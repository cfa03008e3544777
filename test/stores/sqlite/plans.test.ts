import { expect, it } from 'vitest'
import * as acts from '../../../src/stores/sqlite/durable/act-sql.ts'
import * as messages from '../../../src/stores/sqlite/durable/message-sql.ts'
import * as phases from '../../../src/stores/sqlite/durable/phase-sql.ts'
import * as sql from '../../../src/stores/sqlite/sql.ts'
import * as turns from '../../../src/stores/sqlite/turns/sql.ts'
import { setup } from './setup.ts'

it.each([
  ['sweep', sql.LAPSED, [0, 1], 'oncekey_record_lease (lease_until_ms<?)'],
  ['reap', sql.EXPIRED, [0, 1], 'oncekey_record_expiry (expires_at_ms<?)'],
  ['reap of abandoned records', sql.ABANDONED, [0, 1], 'oncekey_record_pending (expires_at_ms<?)'],
  [
    'reap of tombstones',
    sql.TOMBSTONES,
    [0, 1],
    'oncekey_record_tombstone (reconcile_at_ms>? AND reconcile_at_ms<?)',
  ],
  [
    'reap of a refused key',
    sql.FIND_LATER,
    [new Uint8Array(16)],
    'oncekey_record_identity (identity=?)',
  ],
  ['list', sql.LIST, ['unknown', 1], 'oncekey_record_list (state=?)'],
  ['claim', sql.FIND, [new Uint8Array(16)], 'oncekey_record_identity (identity=?)'],
  [
    'search for due operations',
    phases.DUE,
    ['pay', 1, 0, 1],
    'oncekey_record_due (run_name=? AND run_version=? AND reconcile_at_ms>? AND reconcile_at_ms<?)',
  ],
  [
    'search for unknown records',
    turns.LONGEST_UNKNOWN,
    [0, 1],
    'oncekey_record_unknown (reconcile_at_ms>? AND reconcile_at_ms<?)',
  ],
  ['read', sql.FIND_BY_RECORD_ID, ['id'], 'oncekey_record_record_id (record_id=?)'],
] as const)(
  '%s finds its records with an index, in a table without statistics',
  (_, text, values, index) => {
    const { app } = setup()
    const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
    const steps = plan.all(...values).map((row) => row['detail'])
    expect(steps).toEqual([`SEARCH oncekey_record USING INDEX ${index}`])
  },
)

it('makes a tombstone without a scan of the table', () => {
  const { app } = setup()
  const text = sql.forTable('oncekey_record', sql.TO_TOMBSTONE)
  const steps = app.prepare(`EXPLAIN QUERY PLAN ${text}`).all()
  expect(steps.map((row) => row['detail'])).toEqual([
    'SEARCH oncekey_record USING INDEX oncekey_record_identity (identity=?)',
    'SCALAR SUBQUERY 1',
    // The end of the table: SQLite seeks the greatest rowid.
    'SEARCH oncekey_record',
  ])
})

// A row that a call does not end must not be read to its end: its result may be large.
it('the search for expired records reads no results, and nothing behind them', () => {
  const { app } = setup()
  const program = app.prepare(`EXPLAIN ${sql.forTable('oncekey_record', sql.EXPIRED)}`).all(0, 1)
  const columns = app.prepare('SELECT name FROM pragma_table_info(?)').all('oncekey_record')
  const result = columns.findIndex(({ name }) => name === 'result')
  const reads = program.filter((step) => step['opcode'] === 'Column' && step['p1'] === 0)
  const late = reads.filter((step) => Number(step['p2']) >= result)
  expect(columns.slice(result + 1).length).toBeGreaterThan(0)
  expect(late.map((step) => step['p2'])).toEqual([result])
  // Flag of SQLite: the value is only the argument of length().
  expect(Number(late[0]!['p5']) & 0x40).toBe(0x40)
})

it('finds leases from before the clock was set back with the lease index', () => {
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
  [
    'claim',
    messages.DUE_MESSAGES,
    'message',
    `COVERING INDEX {table}_message_due (${BY_DUE_TIME})`,
  ],
  ['repeated claim', messages.HELD_MESSAGES, 'message', 'INDEX {table}_message_token (token=?)'],
  ['settlement', messages.FIND_MESSAGE, 'message', 'INDEX {table}_message_id (id=?)'],
  [
    'lane whose head has ended',
    messages.FIRST_OF_LANE,
    'message',
    'COVERING INDEX {table}_message_lane (topic=? AND lane=?)',
  ],
  [
    'lane to which a message returns',
    messages.FIND_HEAD,
    'message',
    'INDEX {table}_message_lane (topic=? AND lane=?)',
  ],
  ['message list', messages.LIST_MESSAGES, 'message', 'INDEX {table}_message_state (state=?)'],
  ['pruning', messages.ENDED_MESSAGES, 'message', 'INDEX {table}_message_ended (ended_at_ms<?)'],
  [
    'webhook with a downstream key',
    phases.FIND_PHASE_BY_DOWNSTREAM_KEY,
    'phase',
    'INDEX {table}_phase_downstream (downstream_key=?)',
  ],
  [
    "webhook with a provider's id",
    phases.FIND_PHASE_BY_PROVIDER_ID,
    'phase',
    'INDEX {table}_phase_provider (provider_id=?)',
  ],
  ['audit of a record', acts.LIST_AUDIT_OF, 'audit', 'INDEX {table}_audit_subject (subject=?)'],
  [
    'list of discarded replies',
    acts.LIST_DISCARDED,
    'discarded',
    'INDEX {table}_discarded_record_id (record_id=?)',
  ],
] as const)('a %s finds its rows with an index and sorts nothing', (_, text, table, index) => {
  const { app } = setup()
  const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
  const steps = plan.all().map((row) => row['detail'])
  const used = sql.forTable('oncekey_record', index)
  // The number is the rowid, so the newest row comes first without sorting.
  expect(steps).toEqual([`SEARCH oncekey_record_${table} USING ${used}`])
})

it.each([
  ['version', phases.NEXT_VERSION, 'run_name=? AND run_version>?'],
  ['name', phases.NEXT_NAME, 'run_name>?'],
])('leaps to the next %s of due operations, past all records between', (_, text, how) => {
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
] as const)('%s uses an index and sorts nothing', (_, text, table, index) => {
  const { app } = setup()
  const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
  const expected = sql.forTable('oncekey_record', `SEARCH ${table} USING INDEX ${index}`)
  expect(plan.all().map((row) => row['detail'])).toEqual([expected])
})

it('the cases above cover every statement of the turns', () => {
  expect(Object.keys(turns)).toHaveLength(13)
})

// The tenant of a message is stored behind its payload, so reading it reads the payload too.
it.each([
  ['FIRST_MESSAGE_TENANT', turns.FIRST_MESSAGE_TENANT],
  ['NEXT_MESSAGE_TENANT', turns.NEXT_MESSAGE_TENANT],
  ['MESSAGES_OF_TENANT', turns.MESSAGES_OF_TENANT],
])('%s reads only the index', (_, text) => {
  const { app } = setup()
  const program = app.prepare(`EXPLAIN ${sql.forTable('oncekey_record', text)}`).all()
  // The table is cursor 0. SQLite reads its row only to read one of its columns.
  const columns = program.filter((step) => step['opcode'] === 'Column')
  expect(columns.length).toBeGreaterThan(0)
  expect(columns.filter((step) => step['p1'] === 0)).toEqual([])
})

it.each([
  ['records', sql.GET_RECORDS, 'oncekey_record USING INTEGER PRIMARY KEY (rowid=?)'],
  ['messages', messages.GET_MESSAGES, 'oncekey_record_message USING INTEGER PRIMARY KEY (rowid=?)'],
  [
    'settled messages',
    messages.FIND_MESSAGES,
    'oncekey_record_message USING INDEX {table}_message_id (id=?)',
  ],
])('reads only the chosen %s', (_, text, how) => {
  const { app } = setup()
  const plan = app.prepare(`EXPLAIN QUERY PLAN ${sql.forTable('oncekey_record', text)}`)
  const steps = plan.all().map((row) => row['detail'])
  expect(steps[0]).toBe(`SEARCH ${sql.forTable('oncekey_record', how)}`)
  expect(steps.filter((step) => String(step).startsWith('SEARCH oncekey'))).toHaveLength(1)
})

// SQLite uses the value of a bare LIMIT parameter for its plan, and plans again for each value.
it('no statement on due work is planned again for another limit', () => {
  const texts = [turns, phases, messages, acts]
    .flatMap((module) => Object.values(module))
    .map(String)
  expect(texts.filter((text) => /LIMIT \?/.test(text))).toEqual([])
})

it('adding a message does not read the messages that wait in its partition', () => {
  const { app } = setup()
  const text = sql.forTable('oncekey_record', messages.INSERT_MESSAGE)
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
  'finds the history of one %s with an index and sorts nothing',
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
  ['TO_TOMBSTONE', sql.TO_TOMBSTONE],
  ['INSERT_DISCARDED', acts.INSERT_DISCARDED],
  ['INSERT_MESSAGE', messages.INSERT_MESSAGE],
  ['UPDATE_MESSAGE', messages.UPDATE_MESSAGE],
  ['HOLD_MESSAGE', messages.HOLD_MESSAGE],
  ['PUT_PHASE', phases.PUT_PHASE],
])('%s checks the values of a row without a temporary index', (_, text) => {
  const { app } = setup()
  const program = app.prepare(`EXPLAIN ${sql.forTable('oncekey_record', text)}`).all()
  const opened = program.filter((step) => String(step['opcode']).startsWith('OpenEphemeral'))
  expect(program.length).toBeGreaterThan(0)
  expect(opened).toEqual([])
})
