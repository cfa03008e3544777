/** Sample paths for the templates of Express 4 and 5, where they can be derived with certainty. */
import { matchLayer, matchesAll, type Layer } from './stack.ts'

/** A value that no real path contains. */
const PROBE = 'oncekey0probe'

/**
 * Samples for the rest of a path: one segment, an empty segment before it, only empty segments,
 * and more segments than a real path has.
 */
export const RESTS: readonly string[] = [PROBE, `/${PROBE}`, '/', Array(20).fill(PROBE).join('/')]

/** A template with more variants than this is not analysed, and its route counts as open. */
const SAMPLES_MAX = 32

/**
 * Concrete paths that represent everything a template can match: each parameter has a value that
 * only a parameter matches. `undefined` if the template may restrict the values.
 */
export function samplesOf(template: string, layer: Layer): readonly string[] | undefined {
  const samples = layer.matchers === undefined ? expandFour(template) : expandFive(template)
  return samples !== undefined && samples.length <= SAMPLES_MAX ? samples : undefined
}

/**
 * Other spellings of a path: segments in another case, a trailing slash, and doubled slashes
 * (mounts of Express 4 remove the first of two).
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
 * The path that a layer was mounted on. Express 4 keeps a pattern that contains it; in Express 5,
 * `guesses` are tried.
 */
export function mountPathOf(layer: Layer, guesses: readonly string[]): string | undefined {
  if (matchesAll(layer)) return ''
  if (layer.regexp === undefined) return isPlain(layer) ? guessed(layer, guesses) : undefined
  const path = readPattern(layer)
  const samples = path === undefined ? undefined : samplesOf(path, layer)
  return samples?.every((sample) => matchLayer(layer, sample)?.path === sample) ? path : undefined
}

/**
 * Paths that represent everything that leads into a mount. In Express 5, these are the samples of
 * every guess that fits: the path of the mount is among them, and all of them lead there.
 */
export function mountSamplesOf(
  layer: Layer,
  guesses: readonly string[],
): readonly string[] | undefined {
  const path = mountPathOf(layer, guesses)
  if (path === undefined || path === '' || layer.regexp !== undefined) {
    return path === undefined ? undefined : samplesOf(path, layer)
  }
  const isOfMount = (sample: string) => matchLayer(layer, sample)?.path === sample
  return guesses
    .map((guess) => samplesOf(guess, layer) ?? [])
    .filter((samples) => samples.every((sample) => isOfMount(sample)))
    .flat()
}

/** The guess with the most variants, because the other guesses that fit are among them. */
function guessed(layer: Layer, guesses: readonly string[]): string | undefined {
  const weigh = (guess: string) => [...guess.matchAll(PARAMETER)].length
  const [best] = guesses
    .map((guess) => ({ guess, choices: choicesOf(guess) ?? [] }))
    .filter(
      ({ choices }) => choices.length > 0 && choices.every((one) => hasParametersOf(layer, one)),
    )
    .toSorted((a, b) => b.choices.length - a.choices.length || weigh(b.guess) - weigh(a.guess))
  return best?.guess
}

/**
 * Whether exactly the parameters of the template are parameters of the layer: a layer on `/:tenant`
 * also matches `/pay`, but was not mounted on it.
 */
function hasParametersOf(layer: Layer, template: string): boolean {
  if (WILDCARD.test(template)) return false
  const sample = filled(template)
  const match = matchLayer(layer, sample)
  if (match?.path !== sample) return false
  const names = new Set(
    Array.from(template.matchAll(PARAMETER), ([, plain, quoted]) => plain ?? quoted),
  )
  const values = Object.entries(match.params).filter(([, value]) => value !== undefined)
  return (
    values.length === names.size &&
    values.every(([name, value]) => names.has(name) && value === PROBE)
  )
}

/** Whether its path has only text and parameters without a pattern, which match any value. */
export function isPlain(layer: Layer): boolean {
  if (layer.matchers !== undefined) return layer.matchers.every(({ name }) => name === 'match')
  return layer.regexp?.fast_star === true || readPattern(layer) !== undefined
}

/** The end of a pattern of Express 4: of mounts and routes, strict or not. */
const PATTERN_END = /(?:\\\/\?)?(?:\(\?=\\\/\|\$\)|\$)$/

/** A parameter in a pattern of Express 4, in the notations of its versions. */
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

/** The template with and without each of its `{groups}`. */
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
