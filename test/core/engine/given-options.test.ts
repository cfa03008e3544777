/** Errors about wrong options: the likely name, the unit, the store for a client. */
import { DatabaseSync } from 'node:sqlite'
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import pg from 'pg'
import postgres from 'postgres'
import { createClient } from 'redis'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotency } from '../../../src/adapters/express/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { rejectUnknownOptions } from '../../../src/core/options.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { mysqlStore } from '../../../src/stores/mysql/index.ts'
import { postgresStore } from '../../../src/stores/postgres/index.ts'

const KNOWN = ['retentionMs', 'leaseMs', 'store', 'keyHeader', 'with']

describe('an unknown option', () => {
  it.each([
    ['retentionMS', 'retentionMs'],
    ['retention', 'retentionMs'],
    ['leaseMss', 'leaseMs'],
    ['leasMes', 'leaseMs'],
    ['keyheader', 'keyHeader'],
    ['key_header', 'keyHeader'],
    ['sotre', 'store'],
  ])('the error about the option %s suggests %s', (name, meant) => {
    expect(() => rejectUnknownOptions('it', { [name]: 1 }, KNOWN)).toThrow(
      `it has no option "${name}"; did you mean "${meant}"? Known options: keyHeader, leaseMs, `,
    )
  })

  it.each(['ttl', 'statusUrl', 'tenant', 'a', 'x'.repeat(100_000)])(
    'the error about an option without a similar name lists all options (%#)',
    (name) => {
      expect(() => rejectUnknownOptions('it', { [name]: 1 }, KNOWN)).toThrow(
        `it has no option "${name}"; known options: keyHeader, `,
      )
    },
  )

  it('the error names the class of an object that is not an options object', async () => {
    const pool = new pg.Pool()
    onTestFinished(() => pool.end())
    expect(() => postgresStore(pool as never)).toThrow(
      '(the options are an instance of BoundPool); known options: ',
    )
    const pool2 = mysql.createPool({})
    onTestFinished(() => pool2.end())
    expect(() => mysqlStore(pool2 as never)).toThrow('(the options are an instance of PromisePool)')
  })
})

describe('a duration that is text', () => {
  it.each([
    ['24h', '24 h is 86_400_000'],
    ['1.5 hours', '1.5 h is 5_400_000'],
    ['30s', '30 s is 30_000'],
    ['90 min', '90 min is 5_400_000'],
    ['2 days', '2 d is 172_800_000'],
    ['1w', '1 w is 604_800_000'],
    ['86400000', '86400000 ms is 86_400_000'],
  ])('the error about the duration %j gives the number in milliseconds', (retentionMs, hint) => {
    const make = () => createEngine({ store: memoryStore(), retentionMs: retentionMs as never })
    expect(make).toThrow(`got "${retentionMs}": give a number of milliseconds, ${hint}`)
  })

  it('the error about an unreadable duration names the unit', () => {
    const make = () => createEngine({ store: memoryStore(), retentionMs: 'a day' as never })
    expect(make).toThrow(/got "a day": give a number of milliseconds$/)
  })

  it('the error about other numbers suggests no duration', () => {
    const make = () => createEngine({ store: memoryStore(), maxLapses: '3' as never })
    expect(make).toThrow(/got "3"$/)
  })
})

describe('a client given as a store', () => {
  const clients: readonly (readonly [
    string,
    () => [client: object, end?: () => unknown],
    string,
  ])[] = [
    ['a pool of pg', () => ended(new pg.Pool()), 'postgresStore({ pool })'],
    ['a client of pg', () => [new pg.Client()], 'postgresStore({ pool })'],
    ['postgres.js', () => ended(postgres()), 'postgresStore({ pool })'],
    ['a pool of mysql2', () => ended(mysql.createPool({})), 'mysqlStore({ pool })'],
    ['ioredis', () => [new Redis({ lazyConnect: true })], 'redisStore({ client })'],
    ['redis', () => [createClient()], 'redisStore({ client })'],
    ['the AWS SDK', () => [new DynamoDB({ region: 'x' })], 'dynamodbStore({ client: '],
    ['node:sqlite', () => [new DatabaseSync(':memory:')], 'sqliteStore({ path })'],
  ]

  it.each(clients)(
    'the error about %s in place of a store shows how to wrap it',
    (_name, open, use) => {
      const [client, end] = open()
      if (end !== undefined) onTestFinished(() => void end())
      const store = client as Store
      expect(() => createEngine({ store })).toThrow(/createEngine.store must be a store, got a.*: /)
      expect(() => createEngine({ store })).toThrow(`wrap it, as in ${use}`)
      const guard = () => idempotency({ store, tenant: () => 't' })
      expect(guard).toThrow(/^idempotency: store must be a store, got a/)
    },
  )

  it('the error about any other value in place of a store describes it', () => {
    const store = 'postgres://localhost' as never
    expect(() => idempotency({ store, tenant: () => 't' })).toThrow(
      'idempotency: store must be a store such as sqliteStore({ path }), got "postgres://localhost"',
    )
  })
})

function ended(client: { end(): unknown }): [object, () => unknown] {
  return [client, () => client.end()]
}

describe('a list of records', () => {
  it('list refuses a filter that it would not apply', async () => {
    const engine = createEngine({ store: memoryStore() })
    onTestFinished(async () => void (await engine.close()))
    const query = { state: 'unknown', tenant: 'a' } as never
    await expect(engine.list(query)).rejects.toThrow('list has no option "tenant"')
    await expect(engine.list(undefined as never)).rejects.toThrow('list takes an options object')
  })
})
