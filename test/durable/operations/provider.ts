/** A payment provider with a ledger, idempotency keys and named faults. */
export interface Charge {
  readonly id: string
  readonly key: string
  readonly amount: number
  readonly status: 'succeeded' | 'declined'
}

/** The faults of the next calls, one for each call. Later calls succeed. */
export type Fault =
  /** The connection is lost before the charge. */
  | 'error before effect'
  /** The charge is made, and the answer never comes. */
  | 'effect then lost'
  | 'effect then garbage'
  /** The charge is made later, when the test calls `arrive`. */
  | 'late'
  /** A 500 that is stored with the key and repeated. */
  | 'stored 500'
  | 'declined'

export class Provider {
  readonly ledger: Charge[] = []
  readonly faults: Fault[] = []
  /** The keys of all charge calls. */
  readonly calls: string[] = []
  /** The keys of all queries. */
  readonly questions: string[] = []
  readonly #failing = new Set<string>()
  /** Requests that have not arrived yet. */
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

  /** The query API: finds a charge by its key. */
  async query(key: string): Promise<Charge | undefined> {
    this.questions.push(key)
    return this.find(key)
  }

  find(key: string): Charge | undefined {
    return this.ledger.find((charge) => charge.key === key)
  }

  /** Delivers the requests on their way. A key that is already known is not charged again. */
  arrive(): void {
    for (const { key, amount } of this.#late.splice(0)) {
      if (this.find(key) === undefined) this.#make(key, amount, 'succeeded')
    }
  }

  /** Forgets all keys: the same key would charge again. */
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
