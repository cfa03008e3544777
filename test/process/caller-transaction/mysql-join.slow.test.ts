import { withMysql } from '../../stores/mysql/caller-transaction/tools.ts'
import { untilGone, useMariadb } from '../../stores/mysql/setup.ts'
import { runJoinKills } from './run-join-kills.ts'

const openDatabase = useMariadb()

runJoinKills('caller-transaction/mysql-join-worker.ts', async () => {
  const database = await openDatabase()
  const { app, column, connect } = database
  return {
    ...database,
    tool: () => withMysql(connect()),
    lapse: () => app.query('UPDATE oncekey_record SET lease_until_ms = 0'),
    buried: () => untilGone(column),
    isOpen: async () => {
      // Modified rows of a worker's transaction: its payment and its key.
      const open = `SELECT 1 FROM information_schema.innodb_trx WHERE trx_rows_modified = 2`
      return (await column(open)).length === 1
    },
  }
})
