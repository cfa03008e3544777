/** Minimal batching: waiting items are sent together, with a few calls at a time. */

interface Waiting<Item, Answer> {
  readonly item: Item
  readonly resolve: (answer: Answer) => void
  readonly reject: (error: unknown) => void
}

export interface BatchLimits {
  readonly rowsMax: number
  readonly callsMax: number
}

export class Batches<Item, Answer> {
  readonly #call: (items: readonly Item[]) => Promise<Answer[]>
  readonly #limits: BatchLimits
  #waiting: Waiting<Item, Answer>[] = []
  #underWay = 0
  #isDue = false

  constructor(call: (items: readonly Item[]) => Promise<Answer[]>, limits: BatchLimits) {
    this.#call = call
    this.#limits = limits
  }

  ask(item: Item): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ item, resolve, reject })
      this.#flushSoon()
    })
  }

  #flushSoon(): void {
    if (this.#isDue || this.#underWay === this.#limits.callsMax) return
    this.#isDue = true
    setImmediate(() => {
      this.#isDue = false
      while (this.#waiting.length > 0 && this.#underWay < this.#limits.callsMax) {
        void this.#flush(this.#waiting.splice(0, this.#share()))
      }
    })
  }

  /** With two calls of half the size, the database and the process work in parallel. */
  #share(): number {
    const free = this.#limits.callsMax - this.#underWay
    const share = Math.max(32, Math.ceil(this.#waiting.length / free))
    return Math.min(share, this.#limits.rowsMax)
  }

  async #flush(batch: readonly Waiting<Item, Answer>[]): Promise<void> {
    this.#underWay++
    try {
      const answers = await this.#call(batch.map(({ item }) => item))
      batch.forEach(({ resolve }, index) => resolve(answers[index]!))
    } catch (error) {
      for (const { reject } of batch) reject(error)
    } finally {
      this.#underWay--
      if (this.#waiting.length > 0) this.#flushSoon()
    }
  }
}
