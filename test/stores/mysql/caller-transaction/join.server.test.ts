import { TOOLS } from './tools.ts'
import { useMariadb } from '../setup.ts'
import { runJoinCases } from '../../run-join-cases.ts'

const openDatabase = useMariadb()

runJoinCases(TOOLS, async () => {
  const database = await openDatabase()
  return {
    ...database,
    lapse: () => database.app.query('UPDATE oncekey_record SET lease_until_ms = 0'),
  }
})
