import { sleep, type Clock } from './clock.ts'
import type { StorePort } from './store-port.ts'
import type { ClaimRequest } from './store.ts'

const PAUSE_MS_FIRST = 100
const PAUSE_MS_MAX = 5_000

/**
 * The answer to a claim never came, so nobody knows whether the key is now held, by us, for work
 * that will not run. Left alone it would lapse and become `unknown` although nothing happened.
 *
 * So it is released by its token, again and again: the claim may still be on its way and take
 * hold after an earlier release found nothing. Ends once a release has hit, or when the lease of
 * a claim that had taken hold would be over.
 */
export async function releaseLostClaim(
  request: ClaimRequest,
  clock: Clock,
  port: StorePort,
): Promise<void> {
  const { identity, token, retentionMs, leaseMs } = request
  const deadlineMs = clock.monotonicMs() + leaseMs
  let pauseMs = PAUSE_MS_FIRST
  while (clock.monotonicMs() < deadlineMs) {
    try {
      const outcome = await port.settle({
        kind: 'release',
        lease: { identity, token, attempt: 0 },
        proof: 'proven',
        errorCode: 'claim_unanswered',
        retentionMs,
      })
      if (outcome.kind === 'settled') return
    } catch {
      // Reported by the port as a store error; the next round tries again.
    }
    await sleep(clock, pauseMs)
    pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX)
  }
}
