// Takes about 37 s.
import { startPostgres } from '../../servers/postgres.ts'
import { runPaymentKills } from './database-kills.ts'

runPaymentKills('postgres', startPostgres)
