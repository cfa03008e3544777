/** An entry of `ByWeight`, which alone changes these fields. */
export interface Weighed<Entry> {
  weight: number
  /** The entries of the same weight before and after it, in a ring. */
  before: Entry | undefined
  after: Entry | undefined
}

/**
 * Entries by their weight, a whole number: the heaviest is known without a search, however many
 * there are. Of entries with one weight, the one that has had it longest comes first.
 */
export class ByWeight<Entry extends Weighed<Entry>> {
  /** For each weight the first entry of its ring. The last place is never empty. */
  readonly #firsts: (Entry | undefined)[] = []

  get heaviest(): Entry | undefined {
    return this.#firsts.at(-1)
  }

  /** Changes the weight of an entry. With the weight 0 it is not held here. */
  weigh(entry: Entry, weight: number): void {
    if (entry.weight > 0) this.#takeOut(entry)
    entry.weight = weight
    if (weight > 0) this.#putIn(entry)
    // Only now: the heaviest entry, made heavier by one, would empty the whole list in between.
    while (this.#firsts.length > 0 && this.heaviest === undefined) this.#firsts.pop()
  }

  #takeOut(entry: Entry): void {
    const { weight, before, after } = entry
    if (after === entry) this.#firsts[weight] = undefined
    else if (this.#firsts[weight] === entry) this.#firsts[weight] = after
    before!.after = after
    after!.before = before
    entry.before = entry.after = undefined
  }

  #putIn(entry: Entry): void {
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
