/** Paths of Express 4 and 5 as patterns, as far as they can be understood for certain. */
import { matchLayer, matchesAll, type Layer } from './express-stack.ts'

/** No path has it by chance. */
const PROBE = 'oncekey0probe'

/** What stands for any rest of a path: one segment, an empty one, more than anybody writes down. */
export const RESTS: readonly string[] = [PROBE, `/${PROBE}`, Array(20).fill(PROBE).join('/')]

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
 * The same paths as somebody might write them: with another case here and there, and with a slash
 * at the end.
 */
export function spellingsOf(sample: string): string[] {
  const segments = sample.split('/')
  const cased = segments.flatMap((segment, index) =>
    [segment.toUpperCase(), segment.toLowerCase()].map((one) =>
      segments.with(index, one).join('/'),
    ),
  )
  return [sample, ...cased].flatMap((one) => (one.endsWith('/') ? [one] : [one, `${one}/`]))
}

/**
 * The path that a layer was mounted on. Express 4 keeps a pattern from which it can be read; of
 * Express 5, only a guess can be tried.
 */
export function mountPathOf(layer: Layer, guesses: readonly string[]): string | undefined {
  if (matchesAll(layer)) return ''
  const read = layer.regexp === undefined ? undefined : readPattern(layer)
  const candidates = read !== undefined ? [read] : isPlain(layer) ? guesses : []
  return candidates.find((candidate) => {
    const samples = samplesOf(candidate, layer)
    return samples?.every((sample) => matchLayer(layer, sample)?.path === sample) === true
  })
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

/** Text, `:name`, `*name` and `{groups}`. */
function expandFive(template: string): string[] | undefined {
  if (/[\\()[\]+?!]/.test(template)) return undefined
  const group = /\{([^{}]*)\}/.exec(template)
  if (group !== null) {
    const [before, after] = [
      template.slice(0, group.index),
      template.slice(group.index + group[0].length),
    ]
    return all([before + group[1]! + after, before + after], expandFive)
  }
  const wildcard = /\*(?:[\p{ID_Start}$_][\p{ID_Continue}$]*|"[^"]*")/u.exec(template)
  if (wildcard !== null) {
    return all(
      RESTS.map((rest) => template.replace(wildcard[0], rest)),
      expandFive,
    )
  }
  return [template.replaceAll(/:(?:[\p{ID_Start}$_][\p{ID_Continue}$]*|"[^"]*")/gu, PROBE)]
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
