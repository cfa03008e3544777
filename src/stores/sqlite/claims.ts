/** Tests: test/stores/sqlite/store.process.test.ts, test/stores/sqlite/store-cases.test.ts. */
import { decideClaim, decideRenew } from '../../core/record/decide.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type { ClaimOutcome, ClaimRequest, Renewal } from '../../core/store/store.ts'
import type { FileAccess } from './driver/file-access.ts'
import { retire } from './upkeep.ts'

/** Reads first: a replay, a conflict or a look-up is answered without the write lock. */
export async function claimKeys(
  access: FileAccess,
  requests: readonly ClaimRequest[],
): Promise<ClaimOutcome[]> {
  const decisions = await access.look('claim', (nowMs) => {
    const records = access.committed.records.findAll(requests.map(({ identity }) => identity))
    return records.map((record, n) => {
      const request = requests[n]!
      // A free key is decided when it is claimed. A look-up of one claims nothing.
      if (record === undefined && request.mode !== 'find') return undefined
      return decideClaim(record, request, nowMs)
    })
  })
  const answers = decisions.flatMap((decision) =>
    decision === undefined || decision.write !== undefined ? [] : [decision.outcome],
  )
  if (answers.length === requests.length) {
    access.refuseIfReplaced('claim')
    return answers
  }

  return access.write('claim', (nowMs) =>
    requests.map((request, n) => {
      const decision = decisions[n]
      if (decision === undefined) return takeKey(access, request, { isFree: true, nowMs })
      // An outcome without a write stays valid: it was true when the record was read.
      if (decision.write === undefined) return decision.outcome
      return takeKey(access, request, { isFree: false, nowMs })
    }),
  )
}

export function renewLeases(access: FileAccess, renewals: readonly Renewal[]): Promise<boolean[]> {
  const { records } = access.tables
  return access.write('renew', (nowMs) =>
    renewals.map((renewal) => {
      const write = decideRenew(records.find(renewal.identity), renewal, nowMs)
      if (write !== undefined) records.update(write)
      return write !== undefined
    }),
  )
}

/** Inserts a free key without reading it first. Reads it if the insert finds a record. */
function takeKey(
  access: FileAccess,
  request: ClaimRequest,
  { isFree, nowMs }: { readonly isFree: boolean; readonly nowMs: number },
): ClaimOutcome {
  const { records } = access.tables
  if (isFree) {
    const { outcome, write } = decideClaim(undefined, request, nowMs)
    if (write !== undefined && records.insert(write)) return outcome
  }
  const record = records.find(request.identity)
  const { outcome, write } = decideClaim(record, request, nowMs)
  if (write !== undefined) replaceRecord(access, record, write)
  return outcome
}

/** A new record under an old key becomes a new row, so that references to the old row are cut. */
function replaceRecord(
  access: FileAccess,
  record: StoredRecord | undefined,
  write: StoredRecord,
): void {
  const { records } = access.tables
  if (record?.recordId === write.recordId) return records.update(write)
  if (record !== undefined) {
    retire(access, record)
    records.remove(record.identity)
  }
  records.insert(write)
}
