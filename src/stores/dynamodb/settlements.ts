import { decideResolve, decideSettle } from '../../core/record/decide.ts'
import type { ResolveOutcome, SettleOutcome, Settlement, Verdict } from '../../core/store/store.ts'
import type { Calls } from './calls.ts'
import { findIdentity } from './history.ts'
import type { RecordMoves } from './moves.ts'
import { checkSettlement, checkVerdict } from './request-checks.ts'
import { runRows } from './rows.ts'

/** A verdict and the identity of its record; `undefined`: there is no such record. */
interface AddressedVerdict {
  readonly verdict: Verdict
  readonly identity: string | undefined
}

/** Ends leases: complete, release and doubt, and verdicts on unknown records. */
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

  async #settle(settlement: Settlement): Promise<SettleOutcome> {
    const { outcome } = await this.#moves.make({
      identity: settlement.lease.identity,
      from: 'known',
      decide: (record, nowMs) => decideSettle(record, settlement, nowMs),
    })
    return outcome
  }

  async #address(verdict: Verdict): Promise<AddressedVerdict> {
    const { ref } = verdict
    return { verdict, identity: ref.identity ?? (await findIdentity(this.#calls, ref.recordId)) }
  }

  async #resolve({ verdict, identity }: AddressedVerdict): Promise<ResolveOutcome> {
    const { ref } = verdict
    if (identity === undefined) return { kind: 'not_found' }
    const { outcome } = await this.#moves.make<ResolveOutcome>({
      identity,
      from: 'read',
      decide: (record, nowMs) => {
        const isMeant = ref.identity !== undefined || record?.recordId === ref.recordId
        return decideResolve(isMeant ? record : undefined, verdict, nowMs)
      },
    })
    return outcome
  }
}

function refOf({ ref }: Verdict): string {
  return ref.identity ?? ref.recordId
}
