import { ByWeight, type Weighted } from './by-weight.ts'

/** The used front of the array of a line is cut off at this length. */
const SPENT_MAX = 1_024

/** The waiting items of one tenant, oldest first. The newest may be removed from the back. */
class Line<Item> implements Weighted<Line<Item>> {
  readonly tenant: string
  /** The line whose turn comes after this one. */
  next: Line<Item> | undefined
  /** Total weight of the items. */
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
    // Frees the item now: the array keeps its place until the front is cut off.
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
 * A queue in which the tenants take turns: each round takes one item of every tenant, in the order
 * in which the tenants arrived. Only a tenant that sends thousands waits behind its thousands.
 */
export class FairQueue<Item> {
  readonly #lines = new Map<string, Line<Item>>()
  /** The lines whose turn is next and last. */
  #head: Line<Item> | undefined
  #tail: Line<Item> | undefined
  /** Lines whose tenant was held when its turn came. They wait for `readmit`. */
  #held: Line<Item>[] = []
  readonly #weightOf: (item: Item) => number
  #size = 0
  #rows = 0
  readonly #byWeight = new ByWeight<Line<Item>>()

  /** The weight of an item may change only together with a call of `grow` or `crowdOut`. */
  constructor(weightOf: (item: Item) => number = () => 1) {
    this.#weightOf = weightOf
  }

  /** Total weight of the items that wait. */
  get size(): number {
    return this.#size
  }

  /** Number of items that wait. */
  get rows(): number {
    return this.#rows
  }

  push(tenant: string, item: Item): void {
    const line = this.#lines.get(tenant) ?? this.#open(tenant)
    line.push(item)
    this.#rows++
    this.#weigh(line, this.#weightOf(item))
  }

  /** Call this when an item of this tenant has become heavier by one. */
  grow(tenant: string): void {
    const line = this.#lines.get(tenant)
    if (line !== undefined) this.#weigh(line, 1)
  }

  #weigh(line: Line<Item>, change: number): void {
    this.#size += change
    this.#byWeight.weigh(line, line.weight + change)
  }

  /** The item that `shift` would return. A held tenant loses its turns until `readmit`. */
  peek(isHeld?: (tenant: string) => boolean): Item | undefined {
    for (let line = this.#head; line !== undefined; line = this.#head) {
      // The last item of the line was crowded out.
      if (line.length === 0) this.#close(line)
      else if (isHeld?.(line.tenant) === true) this.#held.push(this.#unlink(line))
      else return line.first
    }
    return undefined
  }

  /** Gives the tenants that were held their turns again. */
  readmit(): void {
    if (this.#held.length === 0) return
    const lines = this.#held
    this.#held = []
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
   * Makes room for one more item of this tenant. Returns the newest item of the tenant with the
   * greatest weight. An item of weight 1 is removed; a heavier one stays, and the caller makes it
   * lighter by one. Returns `undefined` if this tenant itself would have the greatest weight.
   * Without `tenant`, the room is for another queue.
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

  /** Removes the line at the head. */
  #unlink(line: Line<Item>): Line<Item> {
    this.#head = line.next
    if (this.#head === undefined) this.#tail = undefined
    line.next = undefined
    return line
  }
}
