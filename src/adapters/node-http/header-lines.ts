import type { HeaderPair } from '../../http/reply/stored-headers.ts'

/**
 * Groups header pairs by lower-case name, for frameworks that set all lines of a header at once. A
 * single line stays a string, because code that reads the header back expects one.
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
