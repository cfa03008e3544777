/** Properties of ours on an object of somebody else's, for a while. */
export class Shadows {
  readonly #owner: object
  readonly #shadows = new Map<string, Shadow>()
  /** Others have put theirs over these, and reach ours through them. */
  readonly #covered: Set<string>

  constructor(owner: object, covered: Iterable<string> = []) {
    this.#owner = owner
    this.#covered = new Set(covered)
  }

  put(name: string, own: PropertyDescriptor): void {
    if (this.#covered.has(name)) return
    const before = Object.getOwnPropertyDescriptor(this.#owner, name)
    this.#shadows.set(name, { own, before })
    Object.defineProperty(this.#owner, name, { configurable: true, enumerable: true, ...own })
  }

  /** What the owner would show without us. */
  beneath(name: string): unknown {
    const before = this.#shadows.get(name)?.before
    if (before === undefined) {
      return Reflect.get(Object.getPrototypeOf(this.#owner) as object, name, this.#owner)
    }
    return before.get === undefined ? before.value : before.get.call(this.#owner)
  }

  /** Changes what the owner will show without us. */
  setBeneath(name: string, value: unknown): void {
    const before = this.#shadows.get(name)?.before
    if (before !== undefined) before.value = value
  }

  /** Takes them away, except where others have put theirs over them; those in `always` too. */
  takeAway(always: ReadonlySet<string>): void {
    for (const [name, { own, before }] of this.#shadows) {
      const now = Object.getOwnPropertyDescriptor(this.#owner, name)
      const isCovered = now?.value !== own.value || now?.get !== own.get
      if (isCovered && !always.has(name)) this.#covered.add(name)
      else if (before !== undefined) Object.defineProperty(this.#owner, name, before)
      else Reflect.deleteProperty(this.#owner, name)
    }
  }
}

interface Shadow {
  readonly own: PropertyDescriptor
  readonly before: PropertyDescriptor | undefined
}
