/** Tests: test/stores/cached/store.process.test.ts, test/stores/cached/fuzz.process.test.ts. */
import type { ClaimOutcome, ClaimRequest } from '../../core/store/store.ts'

/** The fields of a cache entry that a settlement does not contain. */
export interface HeldClaim {
  readonly recordId: string
  readonly fingerprint: string
}

/** More claims than a process holds at a time. Beyond it, the first retry fills the cache. */
const CLAIMS_MAX = 10_000

/**
 * The unsettled claims of this process, by token.
 *
 * A `settled` outcome may refer to an earlier settlement of the same lease, with another result. So
 * a result is cached only if its lease was settled exactly once.
 */
export class HeldClaims {
  readonly #held = new Map<string, HeldClaim>()
  /** How many times each token was used to settle. */
  readonly #uses = new Map<string, number>()

  note(request: ClaimRequest, outcome: ClaimOutcome): void {
    const { token, fingerprint } = request
    if (outcome.kind !== 'claimed' || this.#held.has(token) || this.#uses.has(token)) return
    put(this.#held, token, { recordId: outcome.recordId, fingerprint })
  }

  /** Call before every settlement of the lease. */
  use(token: string): HeldClaim | undefined {
    const claim = this.#held.get(token)
    this.#held.delete(token)
    put(this.#uses, token, (this.#uses.get(token) ?? 0) + 1)
    return claim
  }

  /** Call after the settlement: another call may have settled the lease first. */
  wasUsedOnce(token: string): boolean {
    return this.#uses.get(token) === 1
  }
}

function put<Value>(map: Map<string, Value>, token: string, value: Value): void {
  map.delete(token)
  map.set(token, value)
  if (map.size <= CLAIMS_MAX) return
  const [oldest] = map.keys()
  map.delete(oldest!)
}
