/** The waiting calls of each signal. They share one listener: Node warns about more than ten. */
const waiting = new WeakMap<AbortSignal, Set<() => void>>()

/** Rejects as soon as `signal` aborts, and then ignores the answer. */
export function untilAborted<Answer>(
  answer: Promise<Answer>,
  signal: AbortSignal | undefined,
): Promise<Answer> {
  if (signal === undefined) return answer
  return new Promise((resolve, reject) => {
    const giveUp = () => reject(signal.reason as Error)
    if (signal.aborted) giveUp()
    const giveUps = waiting.get(signal) ?? listenTo(signal)
    giveUps.add(giveUp)
    answer.finally(() => giveUps.delete(giveUp)).then(resolve, reject)
  })
}

function listenTo(signal: AbortSignal): Set<() => void> {
  const giveUps = new Set<() => void>()
  const abort = () => {
    for (const giveUp of giveUps) giveUp()
  }
  signal.addEventListener('abort', abort, { once: true })
  waiting.set(signal, giveUps)
  return giveUps
}
