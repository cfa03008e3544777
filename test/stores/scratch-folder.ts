import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface ScratchFolder {
  readonly file: (name: string) => string
  readonly remove: () => void
}

/** Creates a temporary folder for one test, outside the repository. */
export function scratchFolder(): ScratchFolder {
  const path = mkdtempSync(join(tmpdir(), 'oncekey-'))
  return {
    file: (name) => join(path, name),
    remove: () => rmSync(path, { recursive: true, force: true }),
  }
}
