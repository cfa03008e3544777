import { expect, it } from 'vitest'
import * as sql from '../../src/stores/sqlite/sql.ts'
import { setup } from './sqlite-setup.ts'

it.each([
  ['sweep', sql.LAPSED, [0, 1], 'oncekey_record_lease (lease_until_ms<?)'],
  ['reap', sql.EXPIRED, [0, 1], 'oncekey_record_expiry (expires_at_ms<?)'],
  ['reap of what was abandoned', sql.ABANDONED, [0, 1], 'oncekey_record_pending (expires_at_ms<?)'],
  ['list', sql.LIST, ['unknown', 1], 'oncekey_record_list (state=?)'],
  ['claim', sql.FIND, [new Uint8Array(16)], 'oncekey_record_identity (identity=?)'],
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
])('checks the words of a row without a temporary index on %s', (_, text) => {
  const { app } = setup()
  const program = app.prepare(`EXPLAIN ${sql.forTable('oncekey_record', text)}`).all()
  const opened = program.filter((step) => String(step['opcode']).startsWith('OpenEphemeral'))
  expect(program.length).toBeGreaterThan(0)
  expect(opened).toEqual([])
})
