/**
 * Data folders of private servers. The first process of a run that prepares one leaves a copy for
 * the others: a copy takes a tenth of the time.
 */
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Environment variable with the folder of the copies, for the processes of this run. */
const FOLDER = 'ONCEKEY_TEST_TEMPLATES'

/** Keeps copies until the returned function is called. */
export function keepTemplates(): () => void {
  // A nested run uses the copies of the outer run.
  if (process.env[FOLDER] !== undefined) return () => undefined
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-templates-'))
  process.env[FOLDER] = folder
  return () => {
    delete process.env[FOLDER]
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Creates the data folder: from a copy if there is one, otherwise with `prepare`. */
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
    // Another process was faster; one copy is enough.
    rmSync(own, { recursive: true, force: true })
  }
}

/** Copies owners and modes too, because the servers check them. */
function copy(from: string, to: string): void {
  execFileSync('cp', ['-Rp', from, to], { stdio: 'pipe' })
}
