/** The front of an array that is taken from is cut off once it is this long. */
const SPENT_MAX = 1_024

/** What one tenant has waiting: one after the other; the newest may leave from the back. */
class Line<Item> {
  readonly tenant: string
  /** Whose turn is after this one's. */
  next: Line<Item> | undefined
  #items: (Item | undefined)[] = []
  #front = 0

  constructor(tenant: string) {
    this.tenant = tenant
  }

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
    // Or all that was ever asked with it would live until the front is cut off.
    this.#items[this.#front] = undefined
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
  /** None of them is empty. */
  readonly #lines = new Map<string, Line<Item>>()
  /** Whose turn is next, and whose is last. */
  #head: Line<Item> | undefined
  #tail: Line<Item> | undefined
  #size = 0
  /** A tenant who had the longest line when somebody looked last. */
  #crowd = ''

  get size(): number {
    return this.#size
  }

  push(tenant: string, item: Item): void {
    const line = this.#lines.get(tenant) ?? this.#open(tenant)
    line.push(item)
    this.#size++
    if (tenant !== this.#crowd && line.length > this.#lengthOf(this.#crowd)) this.#crowd = tenant
  }

  /** What `shift` would give. */
  peek(): Item | undefined {
    return this.#head?.first
  }

  shift(): Item | undefined {
    const line = this.#head
    if (line === undefined) return undefined
    const { first } = line
    line.shift()
    this.#size--
    if (line.length === 0) this.#close(line)
    else if (line !== this.#tail) this.#append(this.#unlink(line))
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

  #open(tenant: string): Line<Item> {
    const line = new Line<Item>(tenant)
    this.#lines.set(tenant, line)
    this.#append(line)
    return line
  }

  #close(line: Line<Item>): void {
    this.#unlink(line)
    this.#lines.delete(line.tenant)
  }

  #append(line: Line<Item>): void {
    if (this.#tail === undefined) this.#head = line
    else this.#tail.next = line
    this.#tail = line
  }

  /** Takes out the one whose turn it is. */
  #unlink(line: Line<Item>): Line<Item> {
    this.#head = line.next
    if (this.#head === undefined) this.#tail = undefined
    line.next = undefined
    return line
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
