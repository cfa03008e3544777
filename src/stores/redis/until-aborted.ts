/** Rejects as soon as `signal` aborts, whatever becomes of the answer. */
export function untilAborted<Answer>(
  answer: Promise<Answer>,
  signal: AbortSignal | undefined,
): Promise<Answer> {
  if (signal === undefined) return answer
  return new Promise((resolve, reject) => {
    const giveUp = () => reject(signal.reason as Error)
    if (signal.aborted) giveUp()
    signal.addEventListener('abort', giveUp, { once: true })
    answer.finally(() => signal.removeEventListener('abort', giveUp)).then(resolve, reject)
  })
}
