/** Statements of operator acts: postponing an unknown record, and the audit. */

/** Fenced by the attempt and, if given, by the tries: a record examined since then is unchanged. */
export const POSTPONE = `
  UPDATE "{table}" SET reconcile_at_ms = ?3
  WHERE record_id = ?1 AND attempt = ?2 AND state = 'unknown' AND tries = coalesce(?4, tries)`

export const INSERT_AUDIT = `
  INSERT INTO "{table}_audit" (at_ms, act, subject, who, why, detail) VALUES (?, ?, ?, ?, ?, ?)`

const AUDIT_COLUMNS = 'at_ms, act, subject, who, why, detail'

export const LIST_AUDIT = `
  SELECT ${AUDIT_COLUMNS} FROM "{table}_audit" ORDER BY number DESC LIMIT 0 + ?`

export const LIST_AUDIT_OF = `
  SELECT ${AUDIT_COLUMNS} FROM "{table}_audit" INDEXED BY "{table}_audit_subject"
  WHERE subject = ? ORDER BY number DESC LIMIT 0 + ?`
