/**
 * A process that pays in a transaction of its own and completes the key with it. It stands still
 * where it was told to, after one line that says so, until it is killed; or it goes on for ever
 * and writes one line for every key that it has learned is recorded.
 */
import { writeSync } from 'node:fs'
import pg from 'pg'
import { createEngine } from '../../src/core/engine.ts'
import type { RunContext } from '../../src/core/run-context.ts'
import { postgresStore } from '../../src/stores/postgres/index.ts'

const [url, point, first] = process.argv.slice(2) as [string, string, string]

const report = (line: string) => writeSync(1, `${line}\n`)

async function reach(here: string): Promise<void> {
  if (here !== point) return
  report(here)
  await new Promise(() => undefined)
}

// The test waits until the database knows that these connections are gone.
const connection = { connectionString: url, application_name: 'killed' }
const pool = new pg.Pool({ ...connection, max: 4 })
const engine = createEngine({ store: postgresStore({ pool }), onLapse: 'rerun' })
const client = new pg.Client(connection)
await client.connect()

const payFor = (key: string) => async (context: RunContext) => {
  await reach('claimed')
  await client.query('BEGIN')
  await reach('begun')
  await client.query('INSERT INTO payment VALUES ($1)', [key])
  await reach('paid')
  const receipt = Buffer.from(`receipt of ${key}`)
  await context.completeIn(client, receipt)
  await reach('completed')
  const committed = client.query('COMMIT')
  await reach('committing')
  await committed
  await reach('committed')
  return receipt
}

const scope = { tenant: 'acme', operation: 'pay' }
for (let n = 0; ; n++) {
  const key = point === 'nowhere' ? `${first}-${n}` : first
  const outcome = await engine.run({ scope, key, fingerprint: 'f' }, payFor(key))
  await reach('told')
  if (outcome.kind !== 'ran') throw new Error(`it was ${outcome.kind}`)
  report(key)
}
