/** What one store object remembers of the turns that it has given. */
import { NOTHING_KNOWN, type Remembered } from './turn-walk.ts'

/** Characters that are remembered of cursors, and of tenants to begin leaps from. */
const CHARACTERS_MAX = 4_000_000

/** About what an entry takes beside its characters. */
const ENTRY = 64

/** Forgets what was set least recently once all values together are too long. */
export class BoundedMap<Value> {
  readonly #values = new Map<string, Value>()
  readonly #lengthOf: (value: Value) => number
  #weight = 0

  constructor(lengthOf: (value: Value) => number) {
    this.#lengthOf = lengthOf
  }

  get(key: string): Value | undefined {
    return this.#values.get(key)
  }

  set(key: string, value: Value): void {
    this.delete(key)
    this.#values.set(key, value)
    this.#weight += this.#weightOf(key, value)
    for (const oldest of this.#values.keys()) {
      if (this.#weight <= CHARACTERS_MAX) return
      this.delete(oldest)
    }
  }

  delete(key: string): void {
    const value = this.#values.get(key)
    if (value === undefined) return
    this.#weight -= this.#weightOf(key, value)
    this.#values.delete(key)
  }

  #weightOf(key: string, value: Value): number {
    return ENTRY + key.length + this.#lengthOf(value)
  }
}

/**
 * Where a cursor is forgotten, its turns begin with the first tenant again, and the last may never
 * have one. There is room for more than 20,000 of the usual length.
 */
export class CursorMap extends BoundedMap<string> {
  constructor() {
    super(({ length }) => length)
  }
}

/** Without these a walk is only slower. */
type Hints = Omit<Remembered, 'cursor'>

const lengthOfHints = ({ known }: Hints) => known.reduce((sum, { length }) => sum + length, 0)

/** Where the turns of one store object stopped, and the tenants that they met. */
export class TurnMemory {
  /** The key of the lane with which the last call stopped. */
  lastLane: string | undefined
  readonly #cursors = new CursorMap()
  readonly #hints = new BoundedMap<Hints>(lengthOfHints)

  of(lane: string): Remembered {
    return { ...NOTHING_KNOWN, ...this.#hints.get(lane), cursor: this.#cursors.get(lane) }
  }

  /** A lane that did not move is not set anew: it would push out the ones that did. */
  set(lane: string, { cursor, ...hints }: Remembered): void {
    if (cursor !== undefined && cursor !== this.#cursors.get(lane)) this.#cursors.set(lane, cursor)
    this.#hints.set(lane, hints)
  }
}
