import { seededRandom } from '../../test/process/random.ts'

/** Random choices that are the same for the same seed. */
export interface Dice {
  /** A number in the range [0, 1). */
  readonly random: () => number
  /** A whole number from 0, below `count`. */
  readonly below: (count: number) => number
  readonly pick: <Item>(items: readonly Item[]) => Item
  readonly chance: (part: number) => boolean
  /** `length` bytes of any value, or of the given range. */
  readonly bytes: (length: number, from?: number, to?: number) => Buffer
}

export function createDice(seed: number): Dice {
  const random = seededRandom(seed)
  const below = (count: number) => Math.floor(random() * count)
  return {
    random,
    below,
    pick: (items) => items[below(items.length)]!,
    chance: (part) => random() < part,
    bytes: (length, from = 0, to = 255) =>
      Buffer.from(Array.from({ length }, () => from + below(to - from + 1))),
  }
}
