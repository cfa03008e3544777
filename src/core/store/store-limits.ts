import { wholeNumber } from '../options.ts'
import type { StoreLimits } from './store-port.ts'
import type { StoreBatching, StoreLanes } from './batching.ts'
import type { Store } from './store.ts'

/** Limits of one store call: many rows share a commit, but do not block the event loop. */
const ROWS_MAX = 64
const BATCH_BYTES_MAX = 8 * 1024 * 1024
const FLUSHES_MAX = 4
const WAITING_MAX = 10_000
/** Each lane has separate calls and probes, so their number must be bounded. */
const LANES_MAX = 256

/** The limits that the store gives in `batching`, or else the defaults. */
export function limitsFor({ batching }: Store, timeoutMs: number): StoreLimits {
  const limitOr = <Fallback extends number | undefined>(
    name: Exclude<keyof StoreBatching, 'lanes'>,
    fallback: Fallback,
  ): number | Fallback => {
    const given = batching?.[name]
    if (given === undefined) return fallback
    const bounds = { fallback: 1, min: 1, max: Number.MAX_SAFE_INTEGER }
    return wholeNumber(`createEngine.store.batching.${name}`, given, bounds)
  }
  const rowsMax = limitOr('rowsMax', ROWS_MAX)
  const transactionsMax = limitOr('transactionsMax', undefined)
  return {
    rowsMax,
    flushesMax: limitOr('flushesMax', FLUSHES_MAX),
    transactionsMax,
    stepsMax: limitOr('stepsMax', transactionsMax),
    bytesMax: BATCH_BYTES_MAX,
    waitingMax: WAITING_MAX,
    timeoutMs,
    lanes: lanesOf(batching?.lanes, rowsMax),
  }
}

function lanesOf(lanes: StoreLanes | undefined, rowsMax: number): StoreLimits['lanes'] {
  if (lanes === undefined) return undefined
  const where = 'createEngine.store.batching.lanes'
  const count = { fallback: 1, min: 1, max: LANES_MAX }
  const flushes = { fallback: 1, min: 1, max: Number.MAX_SAFE_INTEGER }
  const isShared = lanes.flushesMax === undefined && rowsMax === 1
  return {
    count: wholeNumber(`${where}.count`, lanes.count, count),
    flushesMax: isShared
      ? undefined
      : wholeNumber(`${where}.flushesMax`, lanes.flushesMax, flushes),
    of: (identity) => lanes.of(identity),
  }
}
