/** Pays in a transaction of `mysql2`: see `join-work.ts`. */
import mysql from 'mysql2/promise'
import { mysqlStore } from '../../../src/stores/mysql/index.ts'
import { workUntilKilled } from './join-work.ts'

const [url, point, first] = process.argv.slice(2) as [string, string, string]

const store = mysqlStore({ pool: mysql.createPool({ uri: url, connectionLimit: 4 }) })
const connection = await mysql.createConnection(url)
const query = (sql: string) => connection.query(sql)
await workUntilKilled(store, { tx: connection, query }, { point, first })
