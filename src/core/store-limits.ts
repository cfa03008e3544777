import { wholeNumber } from './options.ts'
import type { StoreLimits } from './store-port.ts'
import type { Store, StoreBatching, StoreLanes } from './store.ts'

/** One store call: large enough to pay for a commit, small enough not to stall an event loop. */
const ROWS_MAX = 64
const BATCH_BYTES_MAX = 8 * 1024 * 1024
const FLUSHES_MAX = 4
const WAITING_MAX = 10_000
/** Each has calls and probes of its own. */
const LANES_MAX = 256

/** How much of the engine's work a store is given at a time: what it says itself, or ours. */
export function limitsFor({ batching }: Store, timeoutMs: number): StoreLimits {
  const saidOr = <Fallback extends number | undefined>(
    name: Exclude<keyof StoreBatching, 'lanes'>,
    fallback: Fallback,
  ): number | Fallback => {
    const given = batching?.[name]
    if (given === undefined) return fallback
    const bounds = { fallback: 1, min: 1, max: Number.MAX_SAFE_INTEGER }
    return wholeNumber(`createEngine.store.batching.${name}`, given, bounds)
  }
  const rowsMax = saidOr('rowsMax', ROWS_MAX)
  const transactionsMax = saidOr('transactionsMax', undefined)
  return {
    rowsMax,
    flushesMax: saidOr('flushesMax', FLUSHES_MAX),
    transactionsMax,
    stepsMax: saidOr('stepsMax', transactionsMax),
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
