import { startMariadb } from '../servers/mariadb.ts'
import { runPaymentKills } from './payment-database-kills.ts'

runPaymentKills('mariadb', startMariadb)
