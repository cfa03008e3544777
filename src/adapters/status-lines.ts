import type { HeaderPair } from '../http/stored-headers.ts'

/** The values of each header, for frameworks that set a header once with all of them. */
export function linesOf(headers: readonly HeaderPair[]): Map<string, string[]> {
  const lines = new Map<string, string[]>()
  for (const [name, value] of headers) {
    const lower = name.toLowerCase()
    lines.set(lower, [...(lines.get(lower) ?? []), value])
  }
  return lines
}
