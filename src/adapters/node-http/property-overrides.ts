/**
 * Temporary properties on an object that belongs to other code. Each override remembers the
 * descriptor that it replaced.
 */
export class PropertyOverrides {
  readonly #owner: object
  readonly #overrides = new Map<string, Override>()
  /** Names that other packages have overridden after us. Their property calls ours. */
  readonly #replaced: Set<string>

  constructor(owner: object, replaced: Iterable<string> = []) {
    this.#owner = owner
    this.#replaced = new Set(replaced)
  }

  set(name: string, own: PropertyDescriptor): void {
    if (this.#replaced.has(name)) return
    const before = Object.getOwnPropertyDescriptor(this.#owner, name)
    this.#overrides.set(name, { own, before })
    Object.defineProperty(this.#owner, name, { configurable: true, enumerable: true, ...own })
  }

  /** The value that the owner has without the override. */
  original(name: string): unknown {
    const before = this.#overrides.get(name)?.before
    if (before === undefined) {
      return Reflect.get(Object.getPrototypeOf(this.#owner) as object, name, this.#owner)
    }
    return before.get === undefined ? before.value : before.get.call(this.#owner)
  }

  /** Changes the value that the owner has after `restore`. */
  setOriginal(name: string, value: unknown): void {
    const before = this.#overrides.get(name)?.before
    if (before !== undefined) before.value = value
  }

  /** Removes the overrides, except replaced ones that are not in `always`. */
  restore(always: ReadonlySet<string>): void {
    for (const [name, { own, before }] of this.#overrides) {
      const now = Object.getOwnPropertyDescriptor(this.#owner, name)
      const isReplaced = now?.value !== own.value || now?.get !== own.get
      if (isReplaced && !always.has(name)) this.#replaced.add(name)
      else if (before !== undefined) Object.defineProperty(this.#owner, name, before)
      else Reflect.deleteProperty(this.#owner, name)
    }
  }
}

interface Override {
  readonly own: PropertyDescriptor
  readonly before: PropertyDescriptor | undefined
}
