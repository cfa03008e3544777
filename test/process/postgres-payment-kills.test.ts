import { startPostgres } from '../servers/postgres.ts'
import { runPaymentKills } from './payment-database-kills.ts'

runPaymentKills('postgres', startPostgres)
