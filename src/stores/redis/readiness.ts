import { systemClock } from '../../core/clock.ts'
import { isRejected } from '../../core/errors.ts'
import { warnOnce } from '../../core/warn.ts'
import type { RedisCheck } from './check.ts'
import { storeFailed } from './failures.ts'
import { untilAborted } from './until-aborted.ts'

/** How long a refusal stands before the server is looked at again. */
const RECHECK_MS = 5_000

/** The findings that claims are refused for. */
const REFUSED: readonly string[] = ['evicts', 'too_old']

interface Look {
  readonly looking: Promise<void>
  isReady: boolean
  /** Of a refusal; 0: there is none. */
  refusedUntilMs: number
}

/**
 * Looks at how a server is set up before its first claim, and warns of what it does not keep. A
 * refusal stands for a while, and ends without a restart when
 * the server has been set right.
 */
export class Readiness {
  readonly #looks = new Map<string, Look>()

  /** Claims may be sent to this place now. */
  isReady(place: string): boolean {
    return this.#looks.get(place)?.isReady === true
  }

  /**
   * Resolves once claims may be sent to this place, which is a server, or a bucket of a cluster:
   * each bucket asks its own server, so that one that is silent holds up only its own.
   */
  async until(
    place: string,
    look: () => Promise<RedisCheck>,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const known = this.#looks.get(place)
    const isOver = known !== undefined && known.refusedUntilMs > 0 && isPast(known.refusedUntilMs)
    const { looking } = known === undefined || isOver ? this.#look(place, look) : known
    // The claim that came first may wait for longer than this one.
    await untilAborted(looking, signal)
  }

  #look(place: string, look: () => Promise<RedisCheck>): Look {
    const mine: Look = {
      looking: this.#judge(look, (until) => (mine.refusedUntilMs = until)).then(
        () => void (mine.isReady = true),
        (error: unknown) => {
          // Where the server did not answer, the next claim asks again.
          if (!isRejected(error)) this.#looks.delete(place)
          throw error
        },
      ),
      isReady: false,
      refusedUntilMs: 0,
    }
    this.#looks.set(place, mine)
    return mine
  }

  async #judge(
    look: () => Promise<RedisCheck>,
    onRefused: (untilMs: number) => void,
  ): Promise<void> {
    const { usable, findings } = await look()
    if (!usable) {
      onRefused(systemClock.monotonicMs() + RECHECK_MS)
      const reasons = findings.filter(({ kind }) => REFUSED.includes(kind))
      const cause = new Error(reasons.map(({ message }) => message).join('; '))
      throw storeFailed('claim', cause, 'rejected')
    }
    for (const { kind, message } of findings) warnOnce(message, `redis: ${kind}`)
  }
}

function isPast(ms: number): boolean {
  return systemClock.monotonicMs() >= ms
}
