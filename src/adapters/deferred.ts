/** A promise and what settles it. */
export interface Deferred<Value> {
  readonly promise: Promise<Value>
  readonly resolve: (value: Value | PromiseLike<Value>) => void
  readonly reject: (error: unknown) => void
}

export function deferred<Value>(): Deferred<Value> {
  let resolve!: Deferred<Value>['resolve']
  let reject!: (error: unknown) => void
  const promise = new Promise<Value>((yes, no) => {
    resolve = yes
    reject = no
  })
  // Whoever waits for it hears of a rejection; nobody has to.
  promise.catch(() => undefined)
  return { promise, resolve, reject }
}
