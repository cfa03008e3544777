/**
 * Where the tests keep what they write. No test cuts the power, so nothing has to reach a disk, and
 * waiting for one would be a third of a run: where the machine has a file system in memory with
 * enough room, that is it. `TMPDIR` names another place.
 */
import { accessSync, constants, statfsSync } from 'node:fs'
import { availableParallelism, freemem } from 'node:os'

const PLACE = '/dev/shm'
/** Several times what the files of one core have needed at once, at most. */
const NEEDED_BYTES = 2 * 1024 ** 3

/** To be called before anybody asks for the temporary folder. */
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
    // There is no such place here: the usual one will do.
    return false
  }
}
