/** The front of an array that is taken from is cut off once it is this long. */
const SPENT_MAX = 1_024

/** One after the other, from the front; the newest may leave from the back. */
class Line<Item> {
  #items: Item[] = []
  #front = 0

  get length(): number {
    return this.#items.length - this.#front
  }

  push(item: Item): void {
    this.#items.push(item)
  }

  get first(): Item {
    return this.#items[this.#front]!
  }

  shift(): void {
    this.#front++
    if (this.#front < SPENT_MAX) return
    this.#items = this.#items.slice(this.#front)
    this.#front = 0
  }

  pop(): Item {
    return this.#items.pop()!
  }
}

/**
 * What waits, in turns of the tenants: each round takes one of every tenant, in the order they
 * came. Whoever sends thousands waits behind their own, and nobody else does.
 */
export class FairQueue<Item> {
  /** No line is empty; the one whose turn is next comes first. */
  readonly #lines = new Map<string, Line<Item>>()
  #size = 0
  /** A tenant who had the longest line when somebody looked last. */
  #crowd = ''

  get size(): number {
    return this.#size
  }

  push(tenant: string, item: Item): void {
    const line = this.#lines.get(tenant) ?? new Line<Item>()
    if (line.length === 0) this.#lines.set(tenant, line)
    line.push(item)
    this.#size++
    if (line.length > this.#lengthOf(this.#crowd)) this.#crowd = tenant
  }

  /** What `shift` would give. */
  peek(): Item | undefined {
    return this.#next()?.[1].first
  }

  shift(): Item | undefined {
    const next = this.#next()
    if (next === undefined) return undefined
    const [tenant, line] = next
    const { first } = line
    line.shift()
    this.#size--
    this.#lines.delete(tenant)
    if (line.length > 0) this.#lines.set(tenant, line)
    return first
  }

  /**
   * Makes room for one more of this tenant: gives the newest of the tenant who has most, for that
   * one to be refused. `undefined` where that is this tenant, who has then no claim to more.
   */
  crowdOut(tenant: string): Item | undefined {
    const own = this.#lengthOf(tenant) + 1
    if (this.#lengthOf(this.#crowd) <= own) this.#crowd = this.#longest()
    const line = this.#lines.get(this.#crowd)
    if (line === undefined || line.length <= own) return undefined
    this.#size--
    return line.pop()
  }

  #next(): [tenant: string, line: Line<Item>] | undefined {
    for (const next of this.#lines) return next
    return undefined
  }

  #lengthOf(tenant: string): number {
    return this.#lines.get(tenant)?.length ?? 0
  }

  #longest(): string {
    let longest = ''
    for (const tenant of this.#lines.keys()) {
      if (this.#lengthOf(tenant) > this.#lengthOf(longest)) longest = tenant
    }
    return longest
  }
}
