/** One request that waits for a store call. */
export interface Waiting<Request, Outcome> {
  readonly request: Request
  readonly sinceMs: number
  readonly resolve: (outcome: Outcome) => void
  readonly reject: (error: unknown) => void
}

export interface Refused<Request, Outcome> {
  readonly entry: Waiting<Request, Outcome>
  readonly error: unknown
}

/** Where a request waits. */
export interface Place {
  readonly tenant: string
  readonly lane: number
}

/** Rows about one subject with other questions, in the order they came, and by their questions. */
interface Behind<Request, Outcome> {
  readonly rows: WaitingRow<Request, Outcome>[]
  readonly byQuestion: Map<string, WaitingRow<Request, Outcome>>
}

/**
 * A row of a store call that is not sent yet. The first request is the one that is sent; its
 * followers ask the same question and share its answer. Requests about the same subject with other
 * questions stand behind it, as rows for later calls.
 */
export class WaitingRow<Request, Outcome> {
  readonly tenant: string
  /** The number of the lane in which it waits. */
  readonly lane: number
  /** The request that is sent. */
  first: Waiting<Request, Outcome>
  /** In the order they came. */
  followers: Waiting<Request, Outcome>[] = []
  /** How many requests wait here: the first, its followers, and all that stand behind. */
  requests = 1
  #behind: Behind<Request, Outcome> | undefined

  constructor(place: Place, first: Waiting<Request, Outcome>) {
    this.tenant = place.tenant
    this.lane = place.lane
    this.first = first
  }

  /** Adds a request about the same subject. */
  join(entry: Waiting<Request, Outcome>, questionOf: (request: Request) => string): void {
    this.requests++
    const question = questionOf(entry.request)
    if (question === questionOf(this.first.request)) {
      this.followers.push(entry)
      return
    }
    this.#behind ??= { rows: [], byQuestion: new Map() }
    const { rows, byQuestion } = this.#behind
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

  /** Parts with what stands behind: the next row, with the others behind it. */
  detachNext(questionOf: (request: Request) => string): WaitingRow<Request, Outcome> | undefined {
    const behind = this.#behind
    const next = behind?.rows.shift()
    if (behind === undefined || next === undefined) return undefined
    behind.byQuestion.delete(questionOf(next.first.request))
    this.#behind = undefined
    const own = 1 + this.followers.length
    next.requests = this.requests - own
    this.requests = own
    if (behind.rows.length > 0) next.#behind = behind
    return next
  }

  /** Takes out the newest request, which has to make room; the row may be empty afterwards. */
  takeNewest(questionOf: (request: Request) => string): Waiting<Request, Outcome> {
    this.requests--
    const behind = this.#behind
    const last = behind?.rows.at(-1)
    if (behind === undefined || last === undefined) return this.followers.pop() ?? this.first
    const newest = last.takeNewest(questionOf)
    if (last.requests === 0) {
      behind.rows.pop()
      behind.byQuestion.delete(questionOf(newest.request))
    }
    return newest
  }

  /** Takes out the requests that wait since before this time; the next follower becomes first. */
  takeOlderThan(oldestMs: number): Waiting<Request, Outcome>[] {
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

  /** Takes out the requests that are refused; the next one that is not becomes first. */
  takeRefused(refusal: (request: Request) => unknown): Refused<Request, Outcome>[] {
    const refused: Refused<Request, Outcome>[] = []
    const left: Waiting<Request, Outcome>[] = []
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
