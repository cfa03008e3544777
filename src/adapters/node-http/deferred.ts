/** A promise with its resolvers. A class, not a literal, for the reason at `ExecutionRequest`. */
export class Deferred<Value> {
  readonly promise: Promise<Value>
  resolve!: (value: Value | PromiseLike<Value>) => void
  reject!: (error: unknown) => void

  constructor() {
    this.promise = new Promise<Value>((resolve, reject) => {
      this.resolve = resolve
      this.reject = reject
    })
    // A rejection that no caller waits for is not unhandled. Callers that wait still get it.
    this.promise.catch(ignore)
  }
}

function ignore(): void {}
