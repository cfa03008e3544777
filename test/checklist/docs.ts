import { readFileSync } from 'node:fs'
import { join } from 'node:path'

/** A page of the reference. */
export function docs(name: string): string {
  return readFileSync(join(import.meta.dirname, '../../docs/reference', name), 'utf8')
}
