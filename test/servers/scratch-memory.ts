/**
 * The scratch folder of the tests. No test cuts the power, so data need not reach a disk, and
 * waiting for a disk takes a third of a run. Uses a file system in memory if it has enough room.
 * `TMPDIR` overrides it.
 */
import { accessSync, constants, statfsSync } from 'node:fs'
import { availableParallelism, freemem } from 'node:os'

const PLACE = '/dev/shm'
/** Several times the largest size of the files of one core. */
const NEEDED_BYTES = 2 * 1024 ** 3

/** Call this before any code reads the temporary folder. */
export function scratchInMemory(): void {
  if (process.env['TMPDIR'] === undefined && hasRoom()) process.env['TMPDIR'] = PLACE
}

function hasRoom(): boolean {
  const needed = NEEDED_BYTES * availableParallelism()
  try {
    accessSync(PLACE, constants.W_OK)
    const { bavail, bsize } = statfsSync(PLACE)
    return bavail * bsize >= needed && freemem() >= needed
  } catch {
    // The machine has no such file system, so the default is used.
    return false
  }
}
