import { DatabaseSync } from 'node:sqlite'

/** Changes the records of an example as time does: their retention ends, or they are reaped. */
export function endRetention(path: string, how: 'expired' | 'reaped'): void {
  const db = new DatabaseSync(path, { timeout: 5_000 })
  try {
    if (how === 'reaped') db.exec('DELETE FROM oncekey_record')
    else db.prepare('UPDATE oncekey_record SET expires_at_ms = ?').run(Date.now() - 1)
  } finally {
    db.close()
  }
}
