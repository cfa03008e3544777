/**
 * Calls `end` when the signal aborts, or at once if it has aborted before. The returned function
 * stops that.
 */
export function onAbort(signal: AbortSignal | undefined, end: () => void): () => void {
  if (signal === undefined) return nothing
  if (signal.aborted) {
    end()
    return nothing
  }
  signal.addEventListener('abort', end, { once: true })
  return () => signal.removeEventListener('abort', end)
}

/**
 * The answer, or a rejection with the reason of the signal as soon as it aborts. `end` is called
 * first, to free what the call uses. A driver may never answer on a connection that was destroyed,
 * and a late rejection has a handler here.
 */
export function unlessGivenUp<Answer>(
  signal: AbortSignal | undefined,
  answer: Promise<Answer>,
  end: () => void,
): Promise<Answer> {
  if (signal === undefined) return answer
  return new Promise((resolve, reject) => {
    const giveUp = () => {
      end()
      reject(signal.reason as Error)
    }
    answer.then(resolve, reject)
    const stop = onAbort(signal, giveUp)
    answer.then(stop, stop)
  })
}

function nothing(): void {}
