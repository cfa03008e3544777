import { sleep, type Clock } from './clock.ts'
import type { StorePort } from './store-port.ts'
import type { ClaimRequest } from './store.ts'

const PAUSE_MS_FIRST = 100
const PAUSE_MS_MAX = 5_000
/** Claims looked after at once. One more is left to lapse, as if this process had died. */
const LOST_MAX = 10_000

/**
 * The answer to a claim never came, so nobody knows whether the key is now held, by us, for work
 * that will not run. Left alone it would lapse and become `unknown` although nothing happened.
 *
 * So it is released by its token, again and again: the claim may still be on its way and take
 * hold after an earlier release found nothing. Ends once a release has hit, or when the lease of
 * a claim that had taken hold would be over.
 */
export class LostClaims {
  readonly #clock: Clock
  readonly #port: StorePort
  readonly #stopped = new AbortController()
  #pending = 0

  constructor(clock: Clock, port: StorePort) {
    this.#clock = clock
    this.#port = port
  }

  /** Claims that may still be held. */
  get pending(): number {
    return this.#pending
  }

  /** Releases what it has once more, now, and ends. */
  stop(): void {
    this.#stopped.abort()
  }

  release(request: ClaimRequest): void {
    if (this.#pending >= LOST_MAX) return
    this.#pending++
    // Never rejects: what fails is tried again.
    void this.#release(request).finally(() => {
      this.#pending--
    })
  }

  async #release({ identity, tenant, token, retentionMs, leaseMs }: ClaimRequest): Promise<void> {
    const deadlineMs = this.#clock.monotonicMs() + leaseMs
    let pauseMs = PAUSE_MS_FIRST
    while (this.#clock.monotonicMs() < deadlineMs) {
      const { aborted } = this.#stopped.signal
      try {
        const lease = { identity, token, attempt: 0 }
        const release = { kind: 'release', lease, proof: 'proven', retentionMs } as const
        const settlement = { ...release, errorCode: 'claim_unanswered' }
        const outcome = await this.#port.releaseLost(settlement, tenant)
        if (outcome.kind === 'settled') return
      } catch {
        // Reported by the port as a store error; the next round tries again.
      }
      if (aborted) return
      await sleep(this.#clock, pauseMs, this.#stopped.signal)
      pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX)
    }
  }
}
