import { TOOLS } from './tools.ts'
import { usePostgres } from '../setup.ts'
import { runJoinCases } from '../../run-join-cases.ts'

const openDatabase = usePostgres()

runJoinCases(TOOLS, async () => {
  const database = await openDatabase()
  const expire = `UPDATE oncekey_record SET lease_until = now() - interval '1 second'`
  return { ...database, lapse: () => database.app.query(expire) }
})
