import { durationHint } from './durations.ts'
import { InvalidOptionsError } from './errors.ts'
import { nearestName } from './nearest-name.ts'

/** A misspelt option that is silently ignored is a promise silently broken. */
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
    const meant = nearestName(name, known)
    const list = known.toSorted().join(', ')
    throw new InvalidOptionsError(
      meant === undefined
        ? `${where} has no option "${name}"${ofClass(options)}; it knows ${list}`
        : `${where} has no option "${name}"; did you mean "${meant}"? It knows ${list}`,
    )
  }
}

/** Says of an object that is no list of options what it is: a pool given for `{ pool }`, say. */
function ofClass(options: object): string {
  const { constructor } = options as { readonly constructor?: unknown }
  if (typeof constructor !== 'function' || constructor === Object) return ''
  return ` (it was given an instance of ${constructor.name || 'a class'} as its options)`
}

/** A whole number within bounds, or the default where nothing was given. */
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

/** One of a few words, or the default where nothing was given. */
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

/** Yes or no, or the default where nothing was given. */
export function flag(where: string, value: unknown, fallback: boolean): boolean {
  if (value === undefined) return fallback
  if (typeof value === 'boolean') return value
  throw new InvalidOptionsError(`${where} must be true or false, got ${describe(value)}`)
}

/** A function, or `undefined` where nothing was given. */
export function optionalFunction(where: string, value: unknown): void {
  if (value === undefined || typeof value === 'function') return
  throw new InvalidOptionsError(`${where} must be a function, got ${describe(value)}`)
}

export function describe(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value)
  if (value === null || typeof value !== 'object') return String(value)
  return Array.isArray(value) ? 'an array' : 'an object'
}
