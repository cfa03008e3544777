/** A payment that waits for a database lock, so that a test decides when it is made. */
import type pg from 'pg'

const LOCK = 4711

/** Writes a row. Only the key prevents a second one. */
export async function payBehindLock(pool: pg.Pool): Promise<string> {
  const paymentId = crypto.randomUUID()
  await pool.query(`BEGIN; SELECT pg_advisory_xact_lock(${LOCK});
    INSERT INTO payment VALUES ('${paymentId}'); COMMIT`)
  return paymentId
}

/** Takes the lock. Returns the function that releases it. */
export async function holdPayments(pool: pg.Pool): Promise<() => Promise<void>> {
  const client = await pool.connect()
  await client.query('SELECT pg_advisory_lock($1)', [LOCK])
  return async () => {
    await client.query('SELECT pg_advisory_unlock($1)', [LOCK])
    client.release()
  }
}
