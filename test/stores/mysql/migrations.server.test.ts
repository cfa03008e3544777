import { expect, it } from 'vitest'
import { migrationSql, mysqlStore } from '../../../src/stores/mysql/index.ts'
import { telling, useMariadb } from './setup.ts'

const setup = useMariadb()

const LOCK = `SHA1(CONCAT('oncekey ', DATABASE(), ' ', '\`oncekey_record\`'))`

/** Another process that holds the migration lock, and a store that waits for it. */
async function setupWaiting() {
  const { connect, column } = await setup()
  const other = await connect({ multipleStatements: true }).getConnection()
  const [rows] = await other.query({ sql: `SELECT GET_LOCK(${LOCK}, 0)`, rowsAsArray: true })
  expect(rows).toEqual([[1]])
  let tries = 0
  const tell = (sql: string) => void (tries += Number(sql.includes('GET_LOCK')))
  const store = mysqlStore({ pool: telling(connect(), tell) })
  const migrated = store.migrate()
  return { other, column, store, migrated, tries: () => tries }
}

it('tries repeatedly to get the lock while another migration takes long', async () => {
  const { other, column, migrated, tries } = await setupWaiting()
  await expect.poll(tries, { timeout: 20_000 }).toBeGreaterThan(2)
  await other.query(`DO RELEASE_LOCK(${LOCK})`)
  other.release()
  await migrated
  expect(await column('SELECT COUNT(*) FROM oncekey_record')).toEqual([0])
}, 60_000)

it('continues when another process is done but still holds the migration lock', async () => {
  const { other, store, migrated, tries } = await setupWaiting()
  await expect.poll(tries, { timeout: 20_000 }).toBeGreaterThan(0)
  await other.query(migrationSql())
  await migrated
  await store.migrate()
  other.release()
}, 30_000)
