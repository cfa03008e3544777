/** The known name that a misspelt one most likely means; `undefined` where none is near. */
export function nearestName(name: string, known: readonly string[]): string | undefined {
  const wanted = name.toLowerCase()
  // Beyond this length a name is no typo, and comparing it is work for nothing.
  if (wanted.length > LENGTH_MAX) return undefined
  const limit = Math.min(EDITS_MAX, Math.floor(wanted.length / LETTERS_PER_EDIT))
  let nearest: { readonly name: string; readonly edits: number } | undefined
  for (const candidate of known) {
    const edits = editsBetween(wanted, candidate.toLowerCase())
    if (edits <= limit && edits < (nearest?.edits ?? Infinity)) nearest = { name: candidate, edits }
  }
  return nearest?.name
}

const LENGTH_MAX = 64
/** Three wrong letters, and one in three: more would suggest names that are not meant. */
const EDITS_MAX = 3
const LETTERS_PER_EDIT = 3

/** Insertions, deletions, replacements and swaps of neighbours that turn one into the other. */
function editsBetween(one: string, other: string): number {
  let before: number[] = []
  let row = Array.from({ length: other.length + 1 }, (_, index) => index)
  for (let i = 1; i <= one.length; i++) {
    const next = [i]
    for (let j = 1; j <= other.length; j++) {
      const isSame = one[i - 1] === other[j - 1]
      const isSwap = i > 1 && j > 1 && one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1]
      next[j] = Math.min(
        row[j]! + 1,
        next[j - 1]! + 1,
        row[j - 1]! + (isSame ? 0 : 1),
        isSwap ? before[j - 2]! + 1 : Infinity,
      )
    }
    before = row
    row = next
  }
  return row.at(-1)!
}
