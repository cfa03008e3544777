/** Elementary costs: a write that is synced to disk, and a round trip to the database. */
import { randomBytes, randomUUID } from 'node:crypto'
import { closeSync, fdatasyncSync, openSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import type { Figures } from '../report/results.ts'
import type { Load, Places, Program } from '../run/contract.ts'
import { measure } from '../run/measure.ts'
import { expectEqual } from '../run/subject.ts'
import { FINGERPRINT, REPLY_BYTES } from '../run/work.ts'
import { openPool } from '../subjects/stores.ts'

/** The smallest write of a database log. */
const PAGE = Buffer.alloc(8_192, 1)
/** The file is reused after this size, like the log files of databases. */
const FILE_BYTES = 16 * 1024 * 1024

const SCHEMA = `
  CREATE TABLE round_trip (id bytea PRIMARY KEY, token uuid, fingerprint text, result bytea)`
const INSERT = `INSERT INTO round_trip VALUES ($1, $2, $3, NULL)`
const UPDATE = `UPDATE round_trip SET result = $3 WHERE id = $1 AND token = $2`

export async function open({ places }: { readonly places: Places }): Promise<Program> {
  const pool = openPool(places, { max: 1 })
  await pool.query(SCHEMA)
  const result = Buffer.from(REPLY_BYTES)

  /** Two statements with their own commits: the minimum that takes a key and completes it. */
  const writes = async () => {
    const [id, token] = [randomBytes(16), randomUUID()]
    await pool.query({ name: 'insert', text: INSERT, values: [id, token, FINGERPRINT] })
    const done = await pool.query({ name: 'update', text: UPDATE, values: [id, token, result] })
    expectEqual('completed rows', done.rowCount, 1)
  }
  const reads = async () => {
    await pool.query({ name: 'one', text: 'SELECT 1' })
    await pool.query({ name: 'one', text: 'SELECT 1' })
  }
  return {
    calls: {
      fsyncs: (load: Load) => measureSyncs(places.folder, load),
      writes: (load: Load) => measure(writes, load),
      reads: (load: Load) => measure(reads, load),
    },
    close: () => pool.end(),
  }
}

async function measureSyncs(folder: string, load: Load): Promise<Figures> {
  const file = openSync(join(folder, 'synced'), 'w')
  let at = 0
  const once = async () => {
    writeSync(file, PAGE, 0, PAGE.length, at)
    fdatasyncSync(file)
    at = (at + PAGE.length) % FILE_BYTES
  }
  const figures = await measure(once, { ...load, inFlight: 1 })
  closeSync(file)
  return figures
}
