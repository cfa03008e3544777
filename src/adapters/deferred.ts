/** A promise and what settles it. A class: see `ExecutionRequest`. */
export class Deferred<Value> {
  readonly promise: Promise<Value>
  resolve!: (value: Value | PromiseLike<Value>) => void
  reject!: (error: unknown) => void

  constructor() {
    this.promise = new Promise<Value>((resolve, reject) => {
      this.resolve = resolve
      this.reject = reject
    })
    // Whoever waits for it hears of a rejection; nobody has to.
    this.promise.catch(ignore)
  }
}

function ignore(): void {}
