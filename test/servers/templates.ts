/**
 * Data folders of private servers. Whoever is the first in a run to prepare one leaves a copy for
 * the others: to copy it is a tenth of the work of preparing it.
 */
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Where the copies are, for the processes of this run. */
const FOLDER = 'ONCEKEY_TEST_TEMPLATES'

/** Keeps copies from now on, until what it returns is called. */
export function keepTemplates(): () => void {
  // A run within a run has those of the run around it.
  if (process.env[FOLDER] !== undefined) return () => undefined
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-templates-'))
  process.env[FOLDER] = folder
  return () => {
    delete process.env[FOLDER]
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Makes the data folder: of a copy if there is one, otherwise with `prepare`. */
export function fromTemplate(kind: string, data: string, prepare: () => void): void {
  const folder = process.env[FOLDER]
  if (folder === undefined) return prepare()
  const template = join(folder, kind)
  if (existsSync(template)) return copy(template, data)
  prepare()
  const own = `${template}-${process.pid}`
  copy(data, own)
  try {
    renameSync(own, template)
  } catch {
    // Somebody else was quicker, and one is enough.
    rmSync(own, { recursive: true, force: true })
  }
}

/** With owners and modes: the servers look at them. */
function copy(from: string, to: string): void {
  execFileSync('cp', ['-Rp', from, to], { stdio: 'pipe' })
}
