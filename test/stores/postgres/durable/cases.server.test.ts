// Takes about 48 s.
import { afterAll, beforeAll } from 'vitest'
import type { PostgresStoreOptions } from '../../../../src/stores/postgres/index.ts'
import { startPgbouncer, type Pgbouncer } from '../../../servers/pgbouncer.ts'
import { startPostgres, type PostgresServer } from '../../../servers/postgres.ts'
import { DURABLE_DRIVERS, durableOpener, type DurableDriver } from './setup.ts'
import { runDurableCases } from '../../run-durable-cases.ts'

let server: PostgresServer
let bouncer: Pgbouncer
let url: string

beforeAll(async () => {
  server = await startPostgres()
  url = await server.database()
  bouncer = await startPgbouncer(await server.database())
}, 120_000)

afterAll(async () => {
  await bouncer.close()
  await server.close()
})

interface Variant {
  readonly name: string
  readonly driver: keyof typeof DURABLE_DRIVERS
  readonly options: Omit<PostgresStoreOptions, 'pool' | 'clock'>
  readonly isBehindPgbouncer?: boolean
}

const VARIANTS: readonly Variant[] = [
  { name: 'postgres, pg', driver: 'pg', options: {} },
  {
    name: 'postgres, postgres.js, with a history',
    driver: 'postgres.js',
    options: { table: 'by_postgres_js', history: true },
  },
  {
    name: 'postgres, another schema and table, without prepared statements',
    driver: 'pg',
    options: { schema: 'Other', table: 'Kept_keys', prepare: false },
  },
  {
    name: 'postgres, behind pgbouncer in transaction mode',
    driver: 'pg',
    options: { prepare: false, history: true },
    isBehindPgbouncer: true,
  },
]

for (const { name, driver, options, isBehindPgbouncer = false } of VARIANTS) {
  let opened: DurableDriver | undefined
  const driverOf = () => (opened ??= DURABLE_DRIVERS[driver](isBehindPgbouncer ? bouncer.url : url))

  runDurableCases({
    name,
    open: durableOpener(driverOf, options),
    without: options.history === true ? {} : { history: 'the option is off' },
  })

  afterAll(() => opened?.end())
}
