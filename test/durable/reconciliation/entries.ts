import { DatabaseSync } from 'node:sqlite'

/** The entries that the payments have written, in order. */
export function entriesOf(path: string): string[] {
  const db = new DatabaseSync(path, { readOnly: true })
  try {
    const known = db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'entry'").get()
    if (known === undefined) return []
    return db
      .prepare('SELECT what FROM entry ORDER BY rowid')
      .all()
      .map((row) => String(row['what']))
  } finally {
    db.close()
  }
}
