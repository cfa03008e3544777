/** A payment provider with a ledger and an idempotency of its own, and with faults by name. */
export interface Charge {
  readonly id: string
  readonly key: string
  readonly amount: number
  readonly status: 'succeeded' | 'declined'
}

/** What goes wrong with the next calls, one entry a call; nothing once they are used up. */
export type Fault =
  /** Refused before anything happened, and said so by a lost connection. */
  | 'error before effect'
  /** The charge is made and the answer never comes. */
  | 'effect then lost'
  | 'effect then garbage'
  /** Nothing yet: the charge is made when the test says so. */
  | 'late'
  /** A 500, stored under the key and given again. */
  | 'stored 500'
  | 'declined'

export class Provider {
  readonly ledger: Charge[] = []
  readonly faults: Fault[] = []
  /** Every call, by its key. */
  readonly calls: string[] = []
  /** Every question, by its key. */
  readonly questions: string[] = []
  readonly #failing = new Set<string>()
  /** Requests that are still under way. */
  readonly #late: { readonly key: string; readonly amount: number }[] = []
  #forgotten = false

  async charge({ amount }: { readonly amount: number }, key: string): Promise<unknown> {
    this.calls.push(key)
    const fault = this.faults.shift()
    if (this.#failing.has(key)) throw serverError()
    const known = this.find(key)
    if (known !== undefined && !this.#forgotten) return known
    switch (fault) {
      case 'error before effect':
        throw lost()
      case 'effect then lost':
        this.#make(key, amount, 'succeeded')
        throw lost()
      case 'effect then garbage':
        this.#make(key, amount, 'succeeded')
        return '<html>502</html>'
      case 'late':
        this.#late.push({ key, amount })
        throw lost()
      case 'stored 500':
        this.#failing.add(key)
        throw serverError()
      case 'declined':
        return this.#make(key, amount, 'declined')
      case undefined:
        return this.#make(key, amount, 'succeeded')
    }
  }

  /** The query API: by the key that a charge was sent with. */
  async query(key: string): Promise<Charge | undefined> {
    this.questions.push(key)
    return this.find(key)
  }

  find(key: string): Charge | undefined {
    return this.ledger.find((charge) => charge.key === key)
  }

  /** Whatever was under way arrives now. A key that is known by then is not charged again. */
  arrive(): void {
    for (const { key, amount } of this.#late.splice(0)) {
      if (this.find(key) === undefined) this.#make(key, amount, 'succeeded')
    }
  }

  /** Its memory of keys is over: from now on the same key would charge again. */
  forgetKeys(): void {
    this.#forgotten = true
  }

  #make(key: string, amount: number, status: Charge['status']): Charge {
    const charge = { id: `ch_${this.ledger.length + 1}`, key, amount, status }
    this.ledger.push(charge)
    return charge
  }
}

function lost(): Error {
  return Object.assign(new Error('socket hang up'), { code: 'ECONNRESET' })
}

function serverError(): Error {
  return new Error('500 from the provider')
}
