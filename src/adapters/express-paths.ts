/** Paths of Express 4 and 5 as patterns, as far as they can be understood for certain. */
import { matchLayer, matchesAll, type Layer } from './express-stack.ts'

/** No path has them by chance. */
const PROBE = 'oncekey0probe'
const OTHER = 'oncekey1probe'

/**
 * What stands for any rest of a path: one segment, an empty one before it, nothing but empty ones,
 * more than anybody writes down.
 */
export const RESTS: readonly string[] = [PROBE, `/${PROBE}`, '/', Array(20).fill(PROBE).join('/')]

/** More choices than this in one path, and nobody has looked at them all. */
const SAMPLES_MAX = 32

/**
 * Concrete paths that stand for everything a template can match: each parameter has a value that
 * nothing but a parameter matches. `undefined` where the template may be choosy about values.
 */
export function samplesOf(template: string, layer: Layer): readonly string[] | undefined {
  const samples = layer.matchers === undefined ? expandFour(template) : expandFive(template)
  return samples !== undefined && samples.length <= SAMPLES_MAX ? samples : undefined
}

/**
 * The same paths as somebody might write them: with another case here and there, with a slash at
 * the end, and with two of them where one will do (mounts of Express 4 swallow the first).
 */
export function spellingsOf(sample: string): string[] {
  const segments = sample.split('/')
  const cased = segments.flatMap((segment, index) =>
    [segment.toUpperCase(), segment.toLowerCase()].map((one) =>
      segments.with(index, one).join('/'),
    ),
  )
  const doubled = segments.slice(1).map((_, at) => segments.toSpliced(at + 1, 0, '').join('/'))
  return [sample, ...cased, ...doubled].flatMap((one) =>
    one.endsWith('/') ? [one] : [one, `${one}/`],
  )
}

/**
 * The path that a layer was mounted on. Express 4 keeps a pattern from which it can be read; of
 * Express 5, only a guess can be tried.
 */
export function mountPathOf(layer: Layer, guesses: readonly string[]): string | undefined {
  if (matchesAll(layer)) return ''
  if (layer.regexp === undefined) return isPlain(layer) ? guessed(layer, guesses) : undefined
  const path = readPattern(layer)
  const samples = path === undefined ? undefined : samplesOf(path, layer)
  return samples?.every((sample) => matchLayer(layer, sample)?.path === sample) ? path : undefined
}

/** Of several guesses that fit, the one with the most choices: the others are some of them. */
function guessed(layer: Layer, guesses: readonly string[]): string | undefined {
  return guesses
    .map((guess) => ({ guess, choices: choicesOf(guess) ?? [] }))
    .filter(({ choices }) => choices.length > 0 && choices.every((one) => isMadeOf(layer, one)))
    .reduce<{ guess?: string; choices: readonly string[] }>(
      (best, one) => (one.choices.length > best.choices.length ? one : best),
      { choices: [] },
    ).guess
}

/**
 * Whether a layer takes just these parameters for parameters: one on `/:tenant` matches `/pay`
 * too, but was not mounted on it.
 */
function isMadeOf(layer: Layer, template: string): boolean {
  if (WILDCARD.test(template)) return false
  const sample = filled(template)
  const match = matchLayer(layer, sample)
  if (match?.path !== sample || takesOtherText(layer, sample)) return false
  const names = new Set(
    Array.from(template.matchAll(PARAMETER), ([, plain, quoted]) => plain ?? quoted),
  )
  const values = Object.entries(match.params).filter(([, value]) => value !== undefined)
  return (
    values.length === names.size &&
    values.every(([name, value]) => names.has(name) && value === PROBE)
  )
}

/**
 * Whether a layer takes what is text in a sample for a parameter. Its values do not always tell: of
 * two parameters with one name, only the last has one.
 */
function takesOtherText(layer: Layer, sample: string): boolean {
  return [...sample.matchAll(/[\w%]+/g)]
    .filter(([word]) => word !== PROBE)
    .map(({ 0: word, index }) => sample.slice(0, index) + OTHER + sample.slice(index + word.length))
    .some((other) => matchLayer(layer, other)?.path === other)
}

/** Whether it was made from text with parameters alone: those match whatever value. */
export function isPlain(layer: Layer): boolean {
  if (layer.matchers !== undefined) return layer.matchers.every(({ name }) => name === 'match')
  return layer.regexp?.fast_star === true || readPattern(layer) !== undefined
}

/** How patterns of Express 4 end: of mounts, and of routes, strict or not. */
const PATTERN_END = /(?:\\\/\?)?(?:\(\?=\\\/\|\$\)|\$)$/

/** Parameters of Express 4, as its versions have written them. */
const PATTERN_PARAMETER = /\(\?:\\\/\(\[\^\\?\/\]\+\?\)\)(\??)|\\\/\(\?:\(\[\^\\?\/\]\+\?\)\)(\??)/g

function readPattern({ regexp, keys = [] }: Layer): string | undefined {
  if (regexp === undefined || !regexp.source.startsWith('^')) return undefined
  if (!PATTERN_END.test(regexp.source)) return undefined
  let count = 0
  const text = regexp.source
    .slice(1)
    .replace(PATTERN_END, '')
    .replaceAll(PATTERN_PARAMETER, (_all, one: string | undefined, other: string | undefined) => {
      return `/:${keys[count++]?.name ?? 'param'}${one ?? other ?? ''}`
    })
    .replaceAll(/\\([/.-])/g, '$1')
  return /^(?:\/(?::\w+\??|[\w.~%@!,;=&'-]+))*$/.test(text) && count === keys.length
    ? text
    : undefined
}

/** Parameters of Express 5: `:name` and `:"a name"`. */
const PARAMETER = /:(?:([\p{ID_Start}$_][\p{ID_Continue}$]*)|"([^"]*)")/gu

const WILDCARD = /\*(?:[\p{ID_Start}$_][\p{ID_Continue}$]*|"[^"]*")/u

function filled(template: string): string {
  return template.replaceAll(PARAMETER, PROBE)
}

/** Text, `:name`, `*name` and `{groups}`. */
function expandFive(template: string): string[] | undefined {
  const choices = choicesOf(template)
  return choices === undefined ? undefined : choices.flatMap((one) => restsOf(one)).map(filled)
}

/** A template with each of its `{groups}`, and without it. */
function choicesOf(template: string): string[] | undefined {
  if (/[\\()[\]+?!]/.test(template)) return undefined
  const group = /\{([^{}]*)\}/.exec(template)
  if (group === null) return [template]
  const [before, after] = [
    template.slice(0, group.index),
    template.slice(group.index + group[0].length),
  ]
  return all([before + group[1]! + after, before + after], choicesOf)
}

function restsOf(template: string): string[] {
  const wildcard = WILDCARD.exec(template)
  if (wildcard === null) return [template]
  return RESTS.flatMap((rest) => restsOf(template.replace(wildcard[0], rest)))
}

/** Text, `:name` and `/:name?`. */
function expandFour(template: string): string[] | undefined {
  const optional = /\/:\w+\?/.exec(template)
  if (optional !== null) {
    const present = template.replace(optional[0], optional[0].slice(0, -1))
    return all([present, template.replace(optional[0], '') || '/'], expandFour)
  }
  if (/[\\()[\]+?*{}|^$]/.test(template)) return undefined
  return [template.replaceAll(/:\w+/g, PROBE)]
}

function all(
  templates: readonly string[],
  expand: (template: string) => string[] | undefined,
): string[] | undefined {
  const expanded = templates.map((template) => expand(template))
  return expanded.some((one) => one === undefined) ? undefined : expanded.flatMap((one) => one!)
}
