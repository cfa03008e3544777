import { systemClock } from '../../core/clock.ts'
import type { FileAccess } from './file-access.ts'

/** Upkeep in one write transaction: a few milliseconds of it, even where the results are large. */
const PIECE_ROWS = 100
export const PIECE_BYTES = 4 * 1024 * 1024

export interface UpkeepWork<Done> {
  readonly limit: number
  readonly isDue: (nowMs: number) => boolean
  readonly piece: (nowMs: number, rows: number) => Done[]
}

/**
 * Upkeep, at most `limit` rows of it. SQLite works on the event loop's own thread, so everybody
 * gets a turn between two pieces.
 */
export async function inPieces<Done>(
  access: FileAccess,
  operation: 'sweep' | 'reap' | 'prune messages',
  { limit, isDue, piece }: UpkeepWork<Done>,
): Promise<Done[]> {
  const done: Done[] = []
  try {
    // Most calls find nothing, and need not take the write lock to learn it.
    while (done.length < limit && (await access.read(operation, isDue))) {
      const rows = Math.min(PIECE_ROWS, limit - done.length)
      const some = await access.write(operation, (nowMs) => piece(nowMs, rows))
      if (some.length === 0) break
      done.push(...some)
      await new Promise<void>((resolve) => systemClock.soon(resolve))
    }
  } catch (error) {
    // What is committed must be told; the next call meets the trouble again.
    if (done.length === 0) throw error
  }
  return done
}
