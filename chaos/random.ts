/** Repeatable random numbers: the same seed draws the same numbers. */
export interface Random {
  /** A number in the range [0, 1). */
  next(): number
  /** A whole number from `min` to `max`, both included. */
  between(min: number, max: number): number
  chance(probability: number): boolean
  pick<Item>(items: readonly Item[]): Item
  shuffle<Item>(items: readonly Item[]): Item[]
}

/** `stream`: concurrent parts draw from separate streams. */
export function seeded(seed: number, stream = ''): Random {
  let state = mix(seed, stream)
  const next = (): number => {
    // Mulberry32: a few 32-bit operations, with sufficient quality for this purpose.
    state = (state + 0x6d2b79f5) | 0
    let word = Math.imul(state ^ (state >>> 15), 1 | state)
    word = (word + Math.imul(word ^ (word >>> 7), 61 | word)) ^ word
    return ((word ^ (word >>> 14)) >>> 0) / 2 ** 32
  }
  const between = (min: number, max: number) => min + Math.floor(next() * (max - min + 1))
  return {
    next,
    between,
    chance: (probability) => next() < probability,
    pick: (items) => items[between(0, items.length - 1)]!,
    shuffle(items) {
      const mixed = [...items]
      for (let last = mixed.length - 1; last > 0; last--) {
        const other = between(0, last)
        const item = mixed[last]!
        mixed[last] = mixed[other]!
        mixed[other] = item
      }
      return mixed
    },
  }
}

function mix(seed: number, stream: string): number {
  let state = seed | 0
  for (const character of `${seed}:${stream}`) {
    state = Math.imul(state ^ character.codePointAt(0)!, 0x01000193)
  }
  return state
}
