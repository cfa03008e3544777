import { decideResolve, decideSettle } from '../../core/record/decide.ts'
import { decideDiscard } from '../../core/record/decide-discard.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type {
  Discard,
  DiscardOutcome,
  RecordRef,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Verdict,
} from '../../core/store/store.ts'
import type { Calls } from './calls.ts'
import { findIdentity } from './history.ts'
import type { RecordMoves } from './moves.ts'
import { checkDiscard, checkSettlement, checkVerdict } from './request-checks.ts'
import { runRows } from './rows.ts'

/** A verdict and the identity of its record; `undefined`: there is no such record. */
interface AddressedVerdict {
  readonly verdict: Verdict
  readonly identity: string | undefined
}

/** Ends leases: complete, release and doubt. Gives verdicts, and takes results back. */
export class Settlements {
  readonly #calls: Calls
  readonly #moves: RecordMoves

  constructor(calls: Calls, moves: RecordMoves) {
    this.#calls = calls
    this.#moves = moves
  }

  settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    const keyOf = ({ lease }: Settlement) => lease.identity
    const run = (settlement: Settlement) => this.#settle(settlement)
    const work = { operation: 'settle', check: checkSettlement, keyOf, run }
    return runRows(this.#calls, work, settlements, signal)
  }

  /** Finds all identities first, so that verdicts on one record run one after the other. */
  async resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    const operation = 'resolve'
    const find = (verdict: Verdict) => this.#address(verdict)
    const search = { operation, check: checkVerdict, keyOf: refOf, run: find }
    const addressed = await runRows(this.#calls, search, verdicts, signal)
    const keyOf = ({ identity, verdict }: AddressedVerdict) => identity ?? refOf(verdict)
    const run = (one: AddressedVerdict) => this.#resolve(one)
    return runRows(this.#calls, { operation, check: () => {}, keyOf, run }, addressed, signal)
  }

  async discard(discard: Discard, signal?: AbortSignal): Promise<DiscardOutcome> {
    const run = () => this.#discard(discard)
    const work = { operation: 'discard', check: checkDiscard, keyOf: refOf, run }
    const [outcome] = await runRows(this.#calls, work, [discard], signal)
    return outcome!
  }

  async #settle(settlement: Settlement): Promise<SettleOutcome> {
    const { outcome } = await this.#moves.make({
      identity: settlement.lease.identity,
      from: 'known',
      decide: (record, nowMs) => decideSettle(record, settlement, nowMs),
    })
    return outcome
  }

  async #address(verdict: Verdict): Promise<AddressedVerdict> {
    return { verdict, identity: await this.#identityOf(verdict.ref) }
  }

  async #identityOf({ identity, recordId }: RecordRef): Promise<string | undefined> {
    return identity ?? findIdentity(this.#calls, recordId)
  }

  async #resolve({ verdict, identity }: AddressedVerdict): Promise<ResolveOutcome> {
    const { ref } = verdict
    if (identity === undefined) return { kind: 'not_found' }
    const { outcome } = await this.#moves.make<ResolveOutcome>({
      identity,
      from: 'read',
      decide: (record, nowMs) => decideResolve(meantBy(ref, record), verdict, nowMs),
    })
    return outcome
  }

  async #discard(discard: Discard): Promise<DiscardOutcome> {
    const { ref } = discard
    const identity = await this.#identityOf(ref)
    if (identity === undefined) return { kind: 'not_found' }
    const { outcome } = await this.#moves.make<DiscardOutcome>({
      identity,
      from: 'read',
      decide: (record) => decideDiscard(meantBy(ref, record), discard),
    })
    return outcome
  }
}

function refOf({ ref }: { readonly ref: RecordRef }): string {
  return ref.identity ?? ref.recordId
}

/** The index of record ids may be behind: the key may have another record by now. */
function meantBy(ref: RecordRef, record: StoredRecord | undefined): StoredRecord | undefined {
  const isMeant = ref.identity !== undefined || record?.recordId === ref.recordId
  return isMeant ? record : undefined
}
