import { systemClock } from '../../core/time/clock.ts'
import { isRejected } from '../../core/errors.ts'
import { warnOnce } from '../../core/warn.ts'
import type { RedisCheck } from './check.ts'
import { storeFailed } from './failures.ts'
import { untilAborted } from './driver/until-aborted.ts'

/** How long claims are refused before the server is checked again. */
const RECHECK_MS = 5_000

/** Findings that make the store refuse claims. */
const REFUSED: readonly string[] = ['evicts', 'too_old']

interface PlaceCheck {
  readonly done: Promise<void>
  isReady: boolean
  /** 0 if claims are not refused. */
  refusedUntilMs: number
}

/**
 * Checks the configuration of a server before its first claim, and warns about what the server does
 * not guarantee. If the configuration makes the store refuse claims, the check is repeated after
 * `RECHECK_MS`, so that a corrected server needs no restart of the service.
 */
export class Readiness {
  readonly #checks = new Map<string, PlaceCheck>()

  /** Claims may be sent to this place now. */
  isReady(place: string): boolean {
    return this.#checks.get(place)?.isReady === true
  }

  /**
   * Resolves when claims may be sent to this place: a server, or a bucket of a cluster. Each bucket
   * checks its own server, so that a silent server delays only its own buckets.
   */
  async until(
    place: string,
    check: () => Promise<RedisCheck>,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const known = this.#checks.get(place)
    const isOver = known !== undefined && known.refusedUntilMs > 0 && isPast(known.refusedUntilMs)
    const { done } = known === undefined || isOver ? this.#start(place, check) : known
    // The claim that started the check may wait longer than this one.
    await untilAborted(done, signal)
  }

  #start(place: string, check: () => Promise<RedisCheck>): PlaceCheck {
    const started: PlaceCheck = {
      done: this.#judge(check, (until) => (started.refusedUntilMs = until)).then(
        () => void (started.isReady = true),
        (error: unknown) => {
          // If the server did not answer, the next claim checks it again.
          if (!isRejected(error)) this.#checks.delete(place)
          throw error
        },
      ),
      isReady: false,
      refusedUntilMs: 0,
    }
    this.#checks.set(place, started)
    return started
  }

  async #judge(
    check: () => Promise<RedisCheck>,
    onRefused: (untilMs: number) => void,
  ): Promise<void> {
    const { usable, findings } = await check()
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
