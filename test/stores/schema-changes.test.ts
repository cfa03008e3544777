import { createHash } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { appliedMigrations, migrationRecord } from '../../src/core/migrations.ts'
import { MIGRATIONS as MYSQL } from '../../src/stores/mysql/migrations.ts'
import { MIGRATIONS as POSTGRES } from '../../src/stores/postgres/migrations.ts'
import { MIGRATIONS as SQLITE } from '../../src/stores/sqlite/migrations.ts'
import { claim, finish, ofKind } from '../../src/testing/store-cases/store-case.ts'
import { useMariadb } from './mysql-setup.ts'
import { usePostgres } from './postgres-setup.ts'
import { setupFile } from './sqlite-setup.ts'

interface Landed {
  readonly runsFrom: number
  readonly text: string
}

const LANDED: Readonly<Record<string, readonly Landed[]>> = {
  postgres: POSTGRES.map(({ runsFrom, sql }) => ({ runsFrom, text: sql })),
  mysql: MYSQL.map(({ runsFrom, statements }) => ({ runsFrom, text: statements.join('\n') })),
  sqlite: SQLITE.map(({ runsFrom, sql }) => ({ runsFrom, text: sql })),
}

/** Databases that were migrated with these texts exist. A new migration adds a line at the end. */
const PINNED: Readonly<Record<string, readonly string[]>> = {
  postgres: ['60a22f8453369097422ba4cab80d79b775b601089f1c9703196afafdf2835c27'],
  mysql: ['71b0dd96a29abd793fd85752a16a88d9db299f01a056fdfd9de0934cdda307c3'],
  sqlite: ['01bec1b1dcf0fdb09c9ad122f4530b7cb6933fdf1d714e7a6d3038b263cb2b75'],
}

describe.each(Object.keys(LANDED))('the migrations of %s', (store) => {
  const landed = LANDED[store]!

  it('never change once they have landed', () => {
    const hashes = landed.map(({ text }) => createHash('sha256').update(text).digest('hex'))
    expect(hashes).toEqual(PINNED[store])
  })

  it('name as the oldest version that still runs one that exists, and never an older one', () => {
    landed.forEach(({ runsFrom }, index) => {
      expect(runsFrom).toBeGreaterThanOrEqual(landed[index - 1]?.runsFrom ?? 1)
      expect(runsFrom).toBeLessThanOrEqual(index + 1)
    })
  })

  it('keep to what older nodes can bear, and lock no table for long', () => {
    const later = landed.slice(1).map(({ text }) => text)
    for (const text of later) {
      for (const forbidden of FORBIDDEN) expect(text).not.toMatch(forbidden)
    }
    const made = landed.flatMap(({ text }) => [...text.matchAll(/CREATE FUNCTION (\S+)/g)])
    const names = made.map(([, name]) => name)
    expect(names).toEqual([...new Set(names)])
  })
})

/** By the rules of `docs/internals/schema-changes.md`. */
const FORBIDDEN: readonly RegExp[] = [
  /CREATE OR REPLACE/i,
  /ADD VALUE/i,
  /RENAME/i,
  /CREATE (UNIQUE )?INDEX (?!CONCURRENTLY)/i,
  /ALTER TABLE[^;]*ADD COLUMN[^;]*NOT NULL/i,
  /ALTER TABLE[^;]*(ALTER COLUMN|MODIFY|CHANGE COLUMN)/i,
]

it('tells what was applied from the numbers in the table, and what a node has to know', () => {
  const judge = (numbers: number[], known: number) => {
    const [lowest, highest] = [Math.min(0, ...numbers), Math.max(0, ...numbers)]
    return appliedMigrations('"t"', { lowest, highest }, known)
  }
  expect(judge([], 3)).toBe(0)
  expect(judge([1], 3)).toBe(1)
  expect(judge([1, -2], 3)).toBe(2)
  // Changed by a newer version that this one may run beside: nothing to do.
  expect(judge([1, -2, -3, -4], 3)).toBe(3)
  expect(judge([1, -2, -3, 2, -4], 2)).toBe(2)
  // A process died between the number that keeps older nodes out and the change.
  expect(judge([1, -2, 3], 3)).toBe(2)
  expect(() => judge([1, -2, -3, 2, -4], 1)).toThrow(
    'table "t" is at migration 4 and needs a version of oncekey that knows migration 2. ' +
      'This version knows 1: install the newer version again',
  )
  const three = [{ runsFrom: 1 }, { runsFrom: 1 }, { runsFrom: 2 }]
  expect([1, 2, 3].map((number) => migrationRecord(three, number))).toEqual([
    { before: undefined, after: 1 },
    { before: undefined, after: -2 },
    { before: 2, after: -3 },
  ])
})

/** What the first release, 002247e, asks before it starts; it starts where the answer is 1. */
const FIRST_RELEASE = 'SELECT coalesce(max(number), 0) AS n FROM oncekey_record_migration'

describe('on postgres', () => {
  const setup = usePostgres()

  it('starts on tables that a newer compatible version has changed, and leaves them', async () => {
    const { open, app, column } = await setup()
    await finish(await open())
    await app.query('INSERT INTO oncekey_record_migration VALUES (-99)')
    const store = await open()
    ofKind(await claim(store), 'completed')
    expect(await column('SELECT min(number) FROM oncekey_record_migration')).toEqual([-99])
  })

  it('lets the first release start on the tables of this one', async () => {
    const { open, column } = await setup()
    await open()
    expect(await column(FIRST_RELEASE)).toEqual([1])
  })
})

describe('on mariadb', () => {
  const setup = useMariadb()

  it('starts on tables that a newer compatible version has changed, and leaves them', async () => {
    const { open, app, column } = await setup()
    await finish(await open())
    await app.query('INSERT INTO oncekey_record_migration (number) VALUES (-99)')
    const store = await open()
    ofKind(await claim(store), 'completed')
    expect(await column('SELECT MIN(number) FROM oncekey_record_migration')).toEqual([-99])
  })

  it('lets the first release start on the tables of this one', async () => {
    const { open, column } = await setup()
    await open()
    expect((await column(FIRST_RELEASE)).map(Number)).toEqual([1])
  })
})

describe('on sqlite', () => {
  it('starts on tables that a newer compatible version has changed, and leaves them', async () => {
    const { open, connect } = setupFile()
    await finish(open())
    const db = connect()
    db.exec('INSERT INTO oncekey_record_migration VALUES (-99, 0)')
    ofKind(await claim(open()), 'completed')
    const lowest = db.prepare('SELECT min(number) AS n FROM oncekey_record_migration')
    expect(lowest.get()).toEqual({ n: -99 })
  })

  it('lets the first release start on the tables of this one', () => {
    const { open, connect } = setupFile()
    open()
    expect(connect().prepare(FIRST_RELEASE).get()).toEqual({ n: 1 })
  })
})
