import { Breaker } from '../../core/breaker.ts'
import type { Clock } from '../../core/clock.ts'

/** One failure may be an accident. */
const FAILURES_MAX = 3

const BREAK_MS = 5000

/** Leaves a cache alone that keeps failing, so that a dead one costs nearly nothing. */
export function cacheBreaker(clock: Clock): Breaker {
  return new Breaker(clock, { failuresMax: FAILURES_MAX, breakMs: () => BREAK_MS })
}
