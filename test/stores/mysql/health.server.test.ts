import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { mysqlStore } from '../../../src/stores/mysql/index.ts'
import { useMariadb } from './setup.ts'

const setup = useMariadb({ private: true })

// A read-only server permits the row lock of a renewal.
it('reports unready on a read-only server', async () => {
  const { open, app, connect, url } = await setup()
  await open()
  const database = new URL(url).pathname.slice(1)
  await app.query(`CREATE USER plain@'%' IDENTIFIED BY 'plain'`)
  await app.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ${database}.* TO plain@'%'`)
  const { hostname, port } = new URL(url)
  const pool = connect({ uri: `mysql://plain:plain@${hostname}:${port}/${database}` })
  const engine = createEngine({ store: mysqlStore({ pool }), onEvent: () => undefined })
  onTestFinished(async () => void (await engine.close()))
  expect(await engine.health()).toMatchObject({ status: 'ready', store: { name: 'mysql' } })

  await app.query('SET GLOBAL read_only = 1')
  onTestFinished(async () => void (await app.query('SET GLOBAL read_only = 0')))
  expect(await engine.list({ state: 'completed' })).toEqual([])
  const other = createEngine({ store: mysqlStore({ pool }), onEvent: () => undefined })
  onTestFinished(async () => void (await other.close()))
  const { status, store } = await other.health()
  expect([status, store.state]).toEqual(['unready', 'never_answered'])
  expect(store.error).toContain('connect to the primary')
})
