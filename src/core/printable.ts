const LENGTH_MAX = 500

/** An error as one line of bounded length, without the credentials of a URL. */
export function printable(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error)
  return text
    .replaceAll(/\/\/[^\s/@]+@/g, '//…@')
    .replaceAll(/[\s\p{Cc}]+/gu, ' ')
    .slice(0, LENGTH_MAX)
}
