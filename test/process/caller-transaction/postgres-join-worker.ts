/** Pays in a transaction of `pg`: see `join-work.ts`. */
import pg from 'pg'
import { postgresStore } from '../../../src/stores/postgres/index.ts'
import { workUntilKilled } from './join-work.ts'

const [url, point, first] = process.argv.slice(2) as [string, string, string]

// The test waits until the database has closed connections with this name.
const connection = { connectionString: url, application_name: 'killed' }
const store = postgresStore({ pool: new pg.Pool({ ...connection, max: 4 }) })
const client = new pg.Client(connection)
await client.connect()
const query = (sql: string) => client.query(sql)
await workUntilKilled(store, { tx: client, query }, { point, first })
