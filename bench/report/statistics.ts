/** Medians and the spread of the rounds: a shared machine is too noisy for single values. */

export interface Summary {
  readonly median: number
  /** Half the distance between the quartiles. */
  readonly spread: number
}

/** The quantile of the values, interpolated between two of them if necessary. */
export function quantile(values: readonly number[], part: number): number {
  if (values.length === 0) throw new RangeError('a quantile needs at least one value')
  const sorted = values.toSorted((one, other) => one - other)
  const at = (sorted.length - 1) * part
  const below = sorted[Math.floor(at)]!
  const above = sorted[Math.ceil(at)]!
  return below + (above - below) * (at - Math.floor(at))
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5)
}

/** Uses quartiles and not extremes: one round in which the machine slept has no effect. */
export function summarise(values: readonly number[]): Summary {
  const spread = (quantile(values, 0.75) - quantile(values, 0.25)) / 2
  return { median: median(values), spread }
}

/**
 * Compares two series of the same rounds: the ratio of the medians, and the spread of the ratios
 * per round, which excludes a common slowdown.
 */
export function compare(ours: readonly number[], theirs: readonly number[]): Summary {
  if (ours.length !== theirs.length) {
    throw new RangeError(`${ours.length} rounds cannot be compared with ${theirs.length}`)
  }
  const ratios = ours.map((value, round) => value / theirs[round]!)
  return { median: median(ours) / median(theirs), spread: summarise(ratios).spread }
}
