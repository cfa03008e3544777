/** Each costs some 100 bytes. */
const KEYS_MAX = 20_000

/** Keys that were seen completed: a claim of one of them is answered by a read, without a write. */
export class RecentKeys {
  readonly #keys = new Set<string>()

  has(identity: string): boolean {
    return this.#keys.has(identity)
  }

  add(identity: string): void {
    // Put last: what was seen longest ago is given up first.
    this.#keys.delete(identity)
    this.#keys.add(identity)
    if (this.#keys.size <= KEYS_MAX) return
    const [oldest] = this.#keys
    this.#keys.delete(oldest!)
  }

  forget(identity: string): void {
    this.#keys.delete(identity)
  }
}
