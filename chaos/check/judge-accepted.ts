/** Lost: work of the flood was accepted, and was not done. Late is no fault here. */
import type { Facts, Violation } from './facts.ts'

export function judgeAccepted({ accepted, records, books }: Facts): Violation[] {
  const byKey = new Map(records.map((record) => [`${record.tenant} ${record.key}`, record]))
  const paid = new Set(
    books.transfers.filter(({ status }) => status === 'paid').map(({ recordId }) => recordId),
  )
  return accepted.flatMap(({ tenant, key }): Violation[] => {
    const record = byKey.get(`${tenant} ${key}`)
    if (record === undefined) {
      return [{ kind: 'lost', detail: `${key} was accepted, and there is no record of it` }]
    }
    // What has not come to its end is stuck, which is said elsewhere.
    if (record.state !== 'completed' || paid.has(record.recordId)) return []
    const detail = `${key} was accepted and is completed, and nothing was paid`
    return [{ kind: 'lost', recordId: record.recordId, detail }]
  })
}
