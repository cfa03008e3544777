/** Medians, and how far the rounds lie apart: a shared machine is too noisy for digits. */

export interface Summary {
  readonly median: number
  /** Half the distance between the quartiles. */
  readonly spread: number
}

/** The value below which a part of them lies, between two of them where it falls so. */
export function quantile(values: readonly number[], part: number): number {
  if (values.length === 0) throw new RangeError('there are no values to take a quantile of')
  const sorted = values.toSorted((one, other) => one - other)
  const at = (sorted.length - 1) * part
  const below = sorted[Math.floor(at)]!
  const above = sorted[Math.ceil(at)]!
  return below + (above - below) * (at - Math.floor(at))
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5)
}

/** The quartiles and not the extremes: one round in which the machine slept says nothing. */
export function summarise(values: readonly number[]): Summary {
  const spread = (quantile(values, 0.75) - quantile(values, 0.25)) / 2
  return { median: median(values), spread }
}

/**
 * One series against another of the same rounds: the ratio of the medians, and the spread of the
 * ratios round by round, in which what slowed down both is gone.
 */
export function compare(ours: readonly number[], theirs: readonly number[]): Summary {
  if (ours.length !== theirs.length) {
    throw new RangeError(`${ours.length} rounds cannot be compared with ${theirs.length}`)
  }
  const ratios = ours.map((value, round) => value / theirs[round]!)
  return { median: median(ours) / median(theirs), spread: summarise(ratios).spread }
}
