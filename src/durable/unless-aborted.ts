/**
 * What `value` brings, or a rejection with the reason of `signal`, whichever comes first. What it
 * brings after that is neither used nor an accident.
 */
export function unlessAborted<Value>(
  signal: AbortSignal | undefined,
  value: Value | Promise<Value>,
): Promise<Value> {
  return new Promise((resolve, reject) => {
    const onAbort = () => reject(signal?.reason as Error)
    Promise.resolve(value)
      .then(resolve, reject)
      .finally(() => signal?.removeEventListener('abort', onAbort))
    if (signal?.aborted === true) onAbort()
    else signal?.addEventListener('abort', onAbort)
  })
}
