import { InvalidOptionsError } from './errors.ts'
import { DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS } from './time/durations.ts'

/** Throws on an unknown option: a misspelt one would silently have no effect. */
export function rejectUnknownOptions(
  where: string,
  options: object,
  known: readonly string[],
): void {
  if (options === null || typeof options !== 'object') {
    throw new InvalidOptionsError(`${where} takes an options object, got ${describe(options)}`)
  }
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue
    const suggestion = nearestName(name, known)
    const list = known.toSorted().join(', ')
    throw new InvalidOptionsError(
      suggestion === undefined
        ? `${where} has no option "${name}"${classHint(options)}; known options: ${list}`
        : `${where} has no option "${name}"; did you mean "${suggestion}"? Known options: ${list}`,
    )
  }
}

/** Names the class of an object that is not an options object, such as a pool for `{ pool }`. */
function classHint(options: object): string {
  const { constructor } = options as { readonly constructor?: unknown }
  if (typeof constructor !== 'function' || constructor === Object) return ''
  return ` (the options are an instance of ${constructor.name || 'a class'})`
}

/** Returns a whole number within bounds, or `fallback` if the option is `undefined`. */
export function wholeNumber(
  where: string,
  value: unknown,
  { fallback, min, max }: { readonly fallback: number; readonly min: number; readonly max: number },
): number {
  if (value === undefined) return fallback
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= min && value <= max) {
    return value
  }
  throw new InvalidOptionsError(
    `${where} must be a whole number from ${min} to ${max}, got ${describe(value)}` +
      durationHint(where, value),
  )
}

/** Returns one of `words`, or `fallback` if the option is `undefined`. */
export function oneOf<Word extends string>(
  where: string,
  value: unknown,
  { fallback, words }: { readonly fallback: Word; readonly words: readonly Word[] },
): Word {
  if (value === undefined) return fallback
  const word = words.find((candidate) => candidate === value)
  if (word !== undefined) return word
  throw new InvalidOptionsError(
    `${where} must be ${words.map((w) => `'${w}'`).join(' or ')}, got ${describe(value)}`,
  )
}

/** Returns a boolean, or `fallback` if the option is `undefined`. */
export function flag(where: string, value: unknown, fallback: boolean): boolean {
  if (value === undefined) return fallback
  if (typeof value === 'boolean') return value
  throw new InvalidOptionsError(`${where} must be true or false, got ${describe(value)}`)
}

/** Throws unless the option is a function or `undefined`. */
export function optionalFunction(where: string, value: unknown): void {
  if (value === undefined || typeof value === 'function') return
  throw new InvalidOptionsError(`${where} must be a function, got ${describe(value)}`)
}

/** Describes a value for an error message, without the contents of objects. */
export function describe(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value)
  if (value === null || typeof value !== 'object') return String(value)
  return Array.isArray(value) ? 'an array' : 'an object'
}

/** For a duration that is text, such as `'30 s'`: names the same duration in milliseconds. */
function durationHint(where: string, value: unknown): string {
  if (!where.endsWith('Ms') || typeof value !== 'string') return ''
  const match = /^\s*(\d{1,9}(?:\.\d{1,3})?)\s*([a-z]*)\s*$/i.exec(value)
  const unit = UNITS.find(({ names }) => names.includes(match?.[2]?.toLowerCase() ?? '?'))
  if (match === null || unit === undefined) return ': give a number of milliseconds'
  const ms = Math.round(Number(match[1]) * unit.ms)
  const digits = String(ms).replaceAll(/\B(?=(\d{3})+$)/g, '_')
  return `: give a number of milliseconds, ${match[1]} ${unit.names[0]} is ${digits}`
}

const UNITS: readonly { readonly names: readonly string[]; readonly ms: number }[] = [
  { names: ['ms', '', 'msec', 'msecs', 'millisecond', 'milliseconds'], ms: 1 },
  { names: ['s', 'sec', 'secs', 'second', 'seconds'], ms: SECOND_MS },
  { names: ['min', 'm', 'mins', 'minute', 'minutes'], ms: MINUTE_MS },
  { names: ['h', 'hr', 'hrs', 'hour', 'hours'], ms: HOUR_MS },
  { names: ['d', 'day', 'days'], ms: DAY_MS },
  { names: ['w', 'week', 'weeks'], ms: 7 * DAY_MS },
]

/** Returns the known option that is most similar to `name`, or `undefined` if none is close. */
function nearestName(name: string, known: readonly string[]): string | undefined {
  const wanted = name.toLowerCase()
  // A longer name is not a typo, and the time of the comparison grows with its length.
  if (wanted.length > TYPO_LENGTH_MAX) return undefined
  const limit = Math.min(EDITS_MAX, Math.floor(wanted.length / LETTERS_PER_EDIT))
  let nearest: { readonly name: string; readonly edits: number } | undefined
  for (const candidate of known) {
    const edits = editsBetween(wanted, candidate.toLowerCase())
    if (edits <= limit && edits < (nearest?.edits ?? Infinity)) nearest = { name: candidate, edits }
  }
  return nearest?.name
}

const TYPO_LENGTH_MAX = 64
/** At most three edits, and one for each three letters: more would suggest unrelated names. */
const EDITS_MAX = 3
const LETTERS_PER_EDIT = 3

/** Edit distance: insertions, deletions, replacements and swaps of neighbouring letters. */
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
