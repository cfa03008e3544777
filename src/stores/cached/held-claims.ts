import type { ClaimOutcome, ClaimRequest } from '../../core/store.ts'

/** What a completion needs to become an entry, and a settlement does not say. */
export interface HeldClaim {
  readonly recordId: string
  readonly fingerprint: string
}

/** More claims than any process holds at a time. Beyond it replies are cached a little later. */
const CLAIMS_MAX = 10_000

/**
 * The claims of this process that are not settled yet, by their tokens.
 *
 * A `settled` outcome may mean an earlier settlement of the same lease, with another result. So a
 * result is only taken for the record's own where its lease was settled once, and only once.
 */
export class HeldClaims {
  readonly #held = new Map<string, HeldClaim>()
  /** How often each token was used to settle. */
  readonly #uses = new Map<string, number>()

  note(request: ClaimRequest, outcome: ClaimOutcome): void {
    const { token, fingerprint } = request
    if (outcome.kind !== 'claimed' || this.#held.has(token) || this.#uses.has(token)) return
    put(this.#held, token, { recordId: outcome.recordId, fingerprint })
  }

  /** Before the lease is settled, whatever with. */
  use(token: string): HeldClaim | undefined {
    const claim = this.#held.get(token)
    this.#held.delete(token)
    put(this.#uses, token, (this.#uses.get(token) ?? 0) + 1)
    return claim
  }

  /** Asked after it was settled: another call may have begun meanwhile, and come first. */
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
