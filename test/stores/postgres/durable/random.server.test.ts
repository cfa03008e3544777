import { afterAll, beforeAll, it } from 'vitest'
import { startPostgres, type PostgresServer } from '../../../servers/postgres.ts'
import { playDurableHistories } from '../../play-durable-histories.ts'
import { DURABLE_DRIVERS, durableOpener, type DurableDriver } from './setup.ts'

let server: PostgresServer
let driver: DurableDriver

beforeAll(async () => {
  server = await startPostgres()
  driver = DURABLE_DRIVERS.pg(await server.database())
}, 120_000)

afterAll(async () => {
  await driver.end()
  await server.close()
})

it('behaves like a simple model for random calls', { timeout: 120_000 }, () =>
  playDurableHistories({ histories: 8, steps: 250, open: durableOpener(() => driver, {}) }),
)
