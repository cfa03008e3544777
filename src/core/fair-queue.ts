import { ByWeight, type Weighed } from './by-weight.ts'

/** The front of an array that is taken from is cut off once it is this long. */
const SPENT_MAX = 1_024

/** What one tenant has waiting: one after the other; the newest may leave from the back. */
class Line<Item> implements Weighed<Line<Item>> {
  readonly tenant: string
  /** Whose turn is after this one's. */
  next: Line<Item> | undefined
  /** How much it has waiting. */
  weight = 0
  before: Line<Item> | undefined
  after: Line<Item> | undefined
  #items: (Item | undefined)[] = []
  #front = 0

  constructor(tenant: string) {
    this.tenant = tenant
  }

  get length(): number {
    return this.#items.length - this.#front
  }

  get last(): Item {
    return this.#items.at(-1)!
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
  readonly #lines = new Map<string, Line<Item>>()
  /** Whose turn is next, and whose is last. */
  #head: Line<Item> | undefined
  #tail: Line<Item> | undefined
  /** Lines whose tenant was held when its turn came. */
  #aside: Line<Item>[] = []
  readonly #weightOf: (item: Item) => number
  #size = 0
  #rows = 0
  readonly #byWeight = new ByWeight<Line<Item>>()

  /** `weightOf`: how much an item counts; it may change only as `grow` and `crowdOut` say. */
  constructor(weightOf: (item: Item) => number = () => 1) {
    this.#weightOf = weightOf
  }

  /** The weight of all that waits. */
  get size(): number {
    return this.#size
  }

  /** How many items wait. */
  get rows(): number {
    return this.#rows
  }

  push(tenant: string, item: Item): void {
    const line = this.#lines.get(tenant) ?? this.#open(tenant)
    line.push(item)
    this.#rows++
    this.#weigh(line, this.#weightOf(item))
  }

  /** An item of this tenant has become heavier by one. */
  grow(tenant: string): void {
    const line = this.#lines.get(tenant)
    if (line !== undefined) this.#weigh(line, 1)
  }

  #weigh(line: Line<Item>, change: number): void {
    this.#size += change
    this.#byWeight.weigh(line, line.weight + change)
  }

  /** What `shift` would give. A tenant that is held loses its turn until `readmit`. */
  peek(isHeld?: (tenant: string) => boolean): Item | undefined {
    for (let line = this.#head; line !== undefined; line = this.#head) {
      // The last of its items was crowded out.
      if (line.length === 0) this.#close(line)
      else if (isHeld?.(line.tenant) === true) this.#aside.push(this.#unlink(line))
      else return line.first
    }
    return undefined
  }

  /** Tenants that were held get their turns again. */
  readmit(): void {
    if (this.#aside.length === 0) return
    const lines = this.#aside
    this.#aside = []
    for (const line of lines) this.#append(line)
  }

  shift(): Item | undefined {
    const first = this.peek()
    const line = this.#head
    if (first === undefined || line === undefined) return undefined
    line.shift()
    this.#weigh(line, -this.#weightOf(first))
    this.#rows--
    if (line.length === 0) this.#close(line)
    else if (line !== this.#tail) this.#append(this.#unlink(line))
    return first
  }

  /**
   * Makes room for one more of this tenant: gives the newest item of the tenant who has most. An
   * item that counts as one is taken out. A heavier one stays, and the caller makes it lighter by
   * one. `undefined` where the tenant with most is this one. Without a tenant, the room is made
   * for another queue.
   */
  crowdOut(tenant?: string): Item | undefined {
    const own = tenant === undefined ? 0 : (this.#lines.get(tenant)?.weight ?? 0) + 1
    const line = this.#byWeight.heaviest
    if (line === undefined || line.weight <= own) return undefined
    const { last } = line
    this.#weigh(line, -1)
    if (this.#weightOf(last) > 1) return last
    this.#rows--
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
}
