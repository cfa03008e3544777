/** An entry of `ByWeight`. Only `ByWeight` changes these fields. */
export interface Weighted<Entry> {
  weight: number
  /** The neighbours among the entries of the same weight, which form a ring. */
  before: Entry | undefined
  after: Entry | undefined
}

/**
 * Entries ordered by their weight, a whole number. Finds the heaviest without a search. Of entries
 * with the same weight, the one that has had it longest comes first.
 */
export class ByWeight<Entry extends Weighted<Entry>> {
  /** The first entry of each ring, by weight. The last element is never `undefined`. */
  readonly #firsts: (Entry | undefined)[] = []

  get heaviest(): Entry | undefined {
    return this.#firsts.at(-1)
  }

  /** Changes the weight of an entry. An entry of weight 0 is removed. */
  weigh(entry: Entry, weight: number): void {
    if (entry.weight > 0) this.#remove(entry)
    entry.weight = weight
    if (weight > 0) this.#insert(entry)
    // Trimmed only now: between the removal and the insertion, a single entry of great weight would
    // empty the whole list.
    while (this.#firsts.length > 0 && this.heaviest === undefined) this.#firsts.pop()
  }

  #remove(entry: Entry): void {
    const { weight, before, after } = entry
    if (after === entry) this.#firsts[weight] = undefined
    else if (this.#firsts[weight] === entry) this.#firsts[weight] = after
    before!.after = after
    after!.before = before
    entry.before = entry.after = undefined
  }

  #insert(entry: Entry): void {
    while (this.#firsts.length <= entry.weight) this.#firsts.push(undefined)
    const first = this.#firsts[entry.weight]
    if (first === undefined) this.#firsts[entry.weight] = entry
    const after = first ?? entry
    const before = first?.before ?? entry
    entry.after = after
    entry.before = before
    before.after = entry
    after.before = entry
  }
}
