/**
 * Calls `end` when the signal aborts, or at once if it has aborted before. The returned function
 * removes the listener.
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
 * Settles with the answer, or rejects with the signal's reason as soon as it aborts. On abort it
 * first calls `end`, which frees the connection of the call. A driver may never answer on a
 * destroyed connection; if it rejects late, a handler is attached here.
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
