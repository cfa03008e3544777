// Takes about 19 s.
import { expect } from 'vitest'
import { withPg } from '../../stores/postgres/caller-transaction/tools.ts'
import { usePostgres } from '../../stores/postgres/setup.ts'
import { runJoinKills } from './run-join-kills.ts'

const openDatabase = usePostgres()

const KILLED = `FROM pg_stat_activity WHERE application_name = 'killed'`

runJoinKills('caller-transaction/postgres-join-worker.ts', async () => {
  const database = await openDatabase()
  const { app, column, connect } = database
  const expire = `UPDATE oncekey_record SET lease_until = now() - interval '1 second'`
  return {
    ...database,
    tool: () => withPg(connect()),
    lapse: () => app.query(expire),
    /**
     * The database notices a killed process when it next reads from or writes to the connection.
     */
    buried: async () => {
      await expect.poll(async () => (await column(`SELECT count(*)::int ${KILLED}`))[0]).toBe(0)
    },
    isOpen: async () => {
      const open = `SELECT 1 ${KILLED} AND state = 'idle in transaction'`
      return (await app.query(open)).rowCount === 1
    },
  }
})
