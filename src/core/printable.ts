const LENGTH_MAX = 500

/** Returns an error as one line of limited length, without the credentials in URLs. */
export function printable(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error)
  return text
    .replaceAll(/\/\/[^\s/@]+@/g, '//…@')
    .replaceAll(/[\s\p{Cc}]+/gu, ' ')
    .slice(0, LENGTH_MAX)
}
