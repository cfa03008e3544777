/** One request that waits for a store call. */
export interface WaitingRequest<Request, Outcome> {
  readonly request: Request
  readonly sinceMs: number
  readonly resolve: (outcome: Outcome) => void
  readonly reject: (error: unknown) => void
}

export interface Refusal<Request, Outcome> {
  readonly entry: WaitingRequest<Request, Outcome>
  readonly error: unknown
}

/** The tenant and the index of the queue in which a request waits. */
export interface Place {
  readonly tenant: string
  readonly lane: number
}

/** Rows about the same subject with other questions: in order of arrival, and by question. */
interface LaterRows<Request, Outcome> {
  readonly rows: WaitingRow<Request, Outcome>[]
  readonly byQuestion: Map<string, WaitingRow<Request, Outcome>>
}

/**
 * A row of a store call that is not sent yet. Only its first request is sent; its followers have
 * the same question and share the answer. Requests about the same subject with other questions wait
 * behind it, as rows of later calls.
 */
export class WaitingRow<Request, Outcome> {
  readonly tenant: string
  /** The index of the queue in which the row waits. */
  readonly lane: number
  /** The request that is sent. */
  first: WaitingRequest<Request, Outcome>
  /** In order of arrival. */
  followers: WaitingRequest<Request, Outcome>[] = []
  /** Number of requests: the first, its followers, and all in later rows. */
  requests = 1
  #later: LaterRows<Request, Outcome> | undefined

  constructor(place: Place, first: WaitingRequest<Request, Outcome>) {
    this.tenant = place.tenant
    this.lane = place.lane
    this.first = first
  }

  /** Adds a request about the same subject. */
  join(entry: WaitingRequest<Request, Outcome>, questionOf: (request: Request) => string): void {
    this.requests++
    const question = questionOf(entry.request)
    if (question === questionOf(this.first.request)) {
      this.followers.push(entry)
      return
    }
    this.#later ??= { rows: [], byQuestion: new Map() }
    const { rows, byQuestion } = this.#later
    const other = byQuestion.get(question)
    if (other !== undefined) {
      other.requests++
      other.followers.push(entry)
      return
    }
    const row = new WaitingRow(this, entry)
    rows.push(row)
    byQuestion.set(question, row)
  }

  /** Removes the later rows: returns the first of them, with the others behind it. */
  detachNext(questionOf: (request: Request) => string): WaitingRow<Request, Outcome> | undefined {
    const later = this.#later
    const next = later?.rows.shift()
    if (later === undefined || next === undefined) return undefined
    later.byQuestion.delete(questionOf(next.first.request))
    this.#later = undefined
    const own = 1 + this.followers.length
    next.requests = this.requests - own
    this.requests = own
    if (later.rows.length > 0) next.#later = later
    return next
  }

  /** Removes and returns the newest request, to make room. The row may be empty afterwards. */
  takeNewest(questionOf: (request: Request) => string): WaitingRequest<Request, Outcome> {
    this.requests--
    const later = this.#later
    const last = later?.rows.at(-1)
    if (later === undefined || last === undefined) return this.followers.pop() ?? this.first
    const newest = last.takeNewest(questionOf)
    if (last.requests === 0) {
      later.rows.pop()
      later.byQuestion.delete(questionOf(newest.request))
    }
    return newest
  }

  /** Removes and returns the requests from before this time. The next follower becomes first. */
  takeOlderThan(oldestMs: number): WaitingRequest<Request, Outcome>[] {
    if (this.first.sinceMs >= oldestMs) return []
    const entries = [this.first, ...this.followers]
    const found = entries.findIndex(({ sinceMs }) => sinceMs >= oldestMs)
    const late = found === -1 ? entries : entries.slice(0, found)
    this.requests -= late.length
    if (found === -1) return late
    this.first = entries[found]!
    this.followers = entries.slice(found + 1)
    return late
  }

  /** Removes and returns the requests that are refused. The next of the others becomes first. */
  takeRefused(refusal: (request: Request) => unknown): Refusal<Request, Outcome>[] {
    const refused: Refusal<Request, Outcome>[] = []
    const left: WaitingRequest<Request, Outcome>[] = []
    for (const entry of [this.first, ...this.followers]) {
      const error = refusal(entry.request)
      if (error === undefined) left.push(entry)
      else refused.push({ entry, error })
    }
    this.requests -= refused.length
    const [first, ...followers] = left
    if (first === undefined) return refused
    this.first = first
    this.followers = followers
    return refused
  }
}
