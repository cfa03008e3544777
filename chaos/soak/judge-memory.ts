/** Decides whether memory grows, from noisy samples. */

export interface MemorySample {
  readonly atMs: number
  /** Heap size after a garbage collection. */
  readonly heapUsedBytes: number
  /** The load at that time. Only samples of the same load are compared, because levels differ. */
  readonly turn: string
}

export interface MemoryVerdict {
  readonly kind: 'flat' | 'growing' | 'too_short'
  readonly medianMb: number
  /** Growth over the part that was considered. */
  readonly grownMb: number
  readonly mbPerHour: number
  readonly percentPerHour: number
  readonly samples: number
}

/** Samples before this part are warm-up: code is compiled, caches and pools are filled. */
const WARM_UP_PART = 1 / 3
/** Fewer samples, or a shorter time, allow no verdict. */
const SAMPLES_MIN = 10
const WATCHED_MS_MIN = 60_000
/**
 * Growth counts if it exceeds both of these values; below them it is noise. A leak of 100 bytes per
 * request, at a thousand requests a second, is three times as much within five minutes.
 */
const GROWN_MB_MAX = 6
const GROWN_PART_MAX = 0.12
const MB = 1024 * 1024
const HOUR_MS = 3_600_000

export function judgeMemory(all: readonly MemorySample[]): MemoryVerdict {
  const samples = all.slice(Math.floor(all.length * WARM_UP_PART))
  const watchedMs = (samples.at(-1)?.atMs ?? 0) - (samples[0]?.atMs ?? 0)
  const medianMb = medianOf(samples.map(({ heapUsedBytes }) => heapUsedBytes)) / MB
  const mbPerMs = slopeOf(samples) / MB
  const grownMb = mbPerMs * watchedMs
  const isShort = samples.length < SAMPLES_MIN || watchedMs < WATCHED_MS_MIN
  const isGrowing = grownMb > GROWN_MB_MAX && grownMb > medianMb * GROWN_PART_MAX
  return {
    kind: isShort ? 'too_short' : isGrowing ? 'growing' : 'flat',
    medianMb,
    grownMb,
    mbPerHour: mbPerMs * HOUR_MS,
    percentPerHour: medianMb === 0 ? 0 : (100 * mbPerMs * HOUR_MS) / medianMb,
    samples: samples.length,
  }
}

/** The median of the slopes between pairs (Theil-Sen), which is robust against outliers. */
function slopeOf(samples: readonly MemorySample[]): number {
  const slopes: number[] = []
  for (const [index, one] of samples.entries()) {
    for (const other of samples.slice(index + 1)) {
      const ms = other.atMs - one.atMs
      if (ms > 0 && other.turn === one.turn)
        slopes.push((other.heapUsedBytes - one.heapUsedBytes) / ms)
    }
  }
  return medianOf(slopes)
}

function medianOf(values: readonly number[]): number {
  const sorted = values.toSorted((one, other) => one - other)
  const middle = sorted.length / 2
  if (sorted.length === 0) return 0
  return (sorted[Math.floor(middle - 0.5)]! + sorted[Math.floor(middle)]!) / 2
}
