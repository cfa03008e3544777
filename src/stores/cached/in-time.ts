import type { Clock } from '../../core/clock.ts'

/**
 * The cache's answer, or a rejection after `timeoutMs`, when the signal is aborted as well. An
 * answer that has arrived by then counts, even where this process was too busy to look at it: a
 * busy process is no reason to blame the cache, and to send its load to the database.
 */
export function inTime<Answer>(
  clock: Clock,
  timeoutMs: number,
  ask: (signal: AbortSignal) => Promise<Answer>,
): Promise<Answer> {
  let cancel = () => {}
  const givenUp = new AbortController()
  const limit = new Promise<never>((_, reject) => {
    const giveUp = () => {
      const reason = new Error(`no answer within ${timeoutMs} ms`)
      reject(reason)
      givenUp.abort(reason)
    }
    // Timers come before input in a round of the event loop, and this comes after it.
    cancel = clock.after(timeoutMs, () => clock.soon(giveUp))
  })
  // What comes after the limit is neither used nor an accident: the race listens and forgets.
  return Promise.race([answerOf(() => ask(givenUp.signal)), limit]).finally(() => cancel())
}

/** A cache that throws where it should reject is treated alike. */
async function answerOf<Answer>(ask: () => Promise<Answer>): Promise<Answer> {
  return ask()
}
