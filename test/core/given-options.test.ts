/** What wrong options are told: the name that was meant, the unit, the store around a client. */
import { DatabaseSync } from 'node:sqlite'
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import pg from 'pg'
import postgres from 'postgres'
import { createClient } from 'redis'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotency } from '../../src/adapters/express.ts'
import { createEngine } from '../../src/core/engine.ts'
import { rejectUnknownOptions } from '../../src/core/options.ts'
import type { Store } from '../../src/core/store.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { mysqlStore } from '../../src/stores/mysql/index.ts'
import { postgresStore } from '../../src/stores/postgres/index.ts'

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
  ])('%s is told that %s may be meant', (name, meant) => {
    expect(() => rejectUnknownOptions('it', { [name]: 1 }, KNOWN)).toThrow(
      `it has no option "${name}"; did you mean "${meant}"? It knows keyHeader, leaseMs, `,
    )
  })

  it.each(['ttl', 'statusUrl', 'tenant', 'a', 'x'.repeat(100_000)])(
    'that is like none is told what there is (%#)',
    (name) => {
      expect(() => rejectUnknownOptions('it', { [name]: 1 }, KNOWN)).toThrow(
        `it has no option "${name}"; it knows keyHeader, `,
      )
    },
  )

  it('says what it was given where that is no list of options', async () => {
    const pool = new pg.Pool()
    onTestFinished(() => pool.end())
    expect(() => postgresStore(pool as never)).toThrow(
      '(it was given an instance of BoundPool as its options); it knows',
    )
    const pool2 = mysql.createPool({})
    onTestFinished(() => pool2.end())
    expect(() => mysqlStore(pool2 as never)).toThrow('an instance of PromisePool as its options')
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
  ])('%j is told its number', (retentionMs, hint) => {
    const make = () => createEngine({ store: memoryStore(), retentionMs: retentionMs as never })
    expect(make).toThrow(`got "${retentionMs}": give a number of milliseconds, ${hint}`)
  })

  it('that cannot be read is told the unit', () => {
    const make = () => createEngine({ store: memoryStore(), retentionMs: 'a day' as never })
    expect(make).toThrow(/got "a day": give a number of milliseconds$/)
  })

  it('is no matter of other numbers', () => {
    const make = () => createEngine({ store: memoryStore(), maxAttempts: '3' as never })
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

  it.each(clients)('of %s is told how to wrap it', (_name, open, use) => {
    const [client, end] = open()
    if (end !== undefined) onTestFinished(() => void end())
    const store = client as Store
    expect(() => createEngine({ store })).toThrow(/createEngine.store must be a store, got a.*: /)
    expect(() => createEngine({ store })).toThrow(`wrap it, as in ${use}`)
    const guard = () => idempotency({ store, tenant: () => 't' })
    expect(guard).toThrow(/^idempotency: store must be a store, got a/)
  })

  it('that is nothing of the kind is described', () => {
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
  it('refuses a filter that it would not apply', async () => {
    const engine = createEngine({ store: memoryStore() })
    onTestFinished(async () => void (await engine.close()))
    const query = { state: 'unknown', tenant: 'a' } as never
    await expect(engine.list(query)).rejects.toThrow('list has no option "tenant"')
    await expect(engine.list(undefined as never)).rejects.toThrow('list takes an options object')
  })
})
