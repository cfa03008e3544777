import type { StoreLanes } from './store.ts'

/** What a store says about its lanes. */
export type Lanes = Pick<StoreLanes, 'count' | 'of'>

/**
 * The lane of a record; `undefined` where the store is one whole, and where its `of` throws or
 * names a lane that does not exist. Lanes only divide the calls: a mistake in them must not stop
 * a call, nor a probe, nor add a breaker for every number that comes up.
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
