import type { HeaderPair } from '../http/stored-headers.ts'

/**
 * Each header once, for frameworks that set it with all its lines: one line as text, which is what
 * whoever reads it back expects.
 */
export function linesOf(headers: readonly HeaderPair[]): Record<string, string | string[]> {
  const lines: Record<string, string | string[]> = {}
  for (const [name, value] of headers) {
    const lower = name.toLowerCase()
    const known = lines[lower]
    lines[lower] = known === undefined ? value : [known, value].flat()
  }
  return lines
}
