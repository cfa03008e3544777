/** Statements of operator acts: postponing an unknown record, discarded replies, and the audit. */

/** Fenced by the attempt and, if given, by the tries: a record examined since then is unchanged. */
export const POSTPONE = `
  UPDATE "{table}" SET reconcile_at_ms = ?3
  WHERE record_id = ?1 AND attempt = ?2 AND state = 'unknown' AND tries = coalesce(?4, tries)`

/** Runs in the transaction that takes the reply from its record. */
export const INSERT_DISCARDED = `
  INSERT INTO "{table}_discarded"
    (record_id, identity, tenant, operation, attempt, discarded_at_ms, result, run)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

/** Newest first, because the number grows with every row. */
export const LIST_DISCARDED = `
  SELECT record_id, attempt, discarded_at_ms, result, run
  FROM "{table}_discarded" INDEXED BY "{table}_discarded_record_id"
  WHERE record_id = ? ORDER BY number DESC LIMIT 0 + ?`

export const INSERT_AUDIT = `
  INSERT INTO "{table}_audit" (at_ms, act, subject, who, why, detail) VALUES (?, ?, ?, ?, ?, ?)`

const AUDIT_COLUMNS = 'at_ms, act, subject, who, why, detail'

export const LIST_AUDIT = `
  SELECT ${AUDIT_COLUMNS} FROM "{table}_audit" ORDER BY number DESC LIMIT 0 + ?`

export const LIST_AUDIT_OF = `
  SELECT ${AUDIT_COLUMNS} FROM "{table}_audit" INDEXED BY "{table}_audit_subject"
  WHERE subject = ? ORDER BY number DESC LIMIT 0 + ?`
