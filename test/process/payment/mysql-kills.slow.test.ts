// Takes about 47 s.
import { startMariadb } from '../../servers/mariadb.ts'
import { runPaymentKills } from './database-kills.ts'

runPaymentKills('mariadb', startMariadb)
