import type { StoreLanes } from './batching.ts'

/** The number of lanes of a store, and the lane of each record. */
export type Lanes = Pick<StoreLanes, 'count' | 'of'>

/**
 * The lane of a record; `undefined` if the store has no lanes, or if `of` throws or returns a lane
 * that does not exist. Lanes only divide the calls: an error in `of` must not stop a call or a
 * probe, or add a breaker for each wrong number.
 */
export function laneOf(lanes: Lanes | undefined, identity: string): number | undefined {
  if (lanes === undefined) return undefined
  try {
    const lane = lanes.of(identity)
    return isLane(lane, lanes.count) ? lane : undefined
  } catch {
    return undefined
  }
}

export function isLane(lane: unknown, count: number): lane is number {
  return Number.isInteger(lane) && (lane as number) >= 0 && (lane as number) < count
}
