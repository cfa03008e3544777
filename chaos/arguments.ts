import { parseArgs } from 'node:util'
import { PLANT_NAMES, type PlantName } from './plant/plants.ts'

export const STORES = ['sqlite', 'postgres', 'mysql'] as const

export type StoreName = (typeof STORES)[number]

export const NEIGHBOURS = ['on', 'off', 'compare'] as const

export type NeighboursChoice = (typeof NEIGHBOURS)[number]

export interface ChaosOptions {
  readonly seconds: number
  readonly seed: number
  readonly store: StoreName
  readonly reportFile: string
  /** How long everything may take, once nothing goes wrong any more, until it is at rest. */
  readonly healSeconds: number
  readonly plant: PlantName | undefined
  /** Bad neighbours of the other tenants. `compare`: one run without them, and one with them. */
  readonly neighbours: NeighboursChoice
  /** Ends at the first violation that shows while it runs. */
  readonly untilViolation: boolean
  /** What the processes said, also of a run that found nothing. */
  readonly keepLogs: boolean
}

export type Arguments =
  | { readonly kind: 'run'; readonly options: ChaosOptions }
  | { readonly kind: 'help' }
  | { readonly kind: 'wrong'; readonly sentence: string }

const SECONDS_MAX = 86_400
/** What has failed often is tried again after five minutes at most; a lost look costs half one. */
const HEAL_SECONDS = 360
const SEED_MAX = 2 ** 32 - 1

export const HELP = `npm run chaos -- [options]

Runs the payments service as real processes (two API nodes, two workers, a provider, a database),
has clients use it the way clients do, breaks what can be broken meanwhile, lets it heal, and checks
that nothing happened twice, differently, not at all, for ever, or to somebody else.

  --seconds N         how long things go wrong (30)
  --seed N            what is tried, and when; a new one by default, and always printed
  --store NAME        ${STORES.join(', ')} (sqlite)
  --heal-seconds N    how long it may take to come to rest after that (${HEAL_SECONDS})
  --report FILE       where the report goes (chaos-reports/<store>-<seed>.json)
  --plant NAME        plants a bug that must be found: ${PLANT_NAMES.join(', ')}
  --neighbours WHICH  ${NEIGHBOURS.join(', ')} (on): a tenant that floods accepted work, a provider
                      that hangs for one operation, and a topic whose handler never ends;
                      compare makes a run without and one with them, and says whether the others'
                      p99 of waiting stays within twice that of the run without
  --until-violation   ends at the first violation that shows while it runs
  --keep-logs         keeps what the processes said beside the report, whatever comes out
  --help              this text

Exit code: 0 nothing was found, 1 something was found or others waited too long, 2 the run
itself failed.
`

export function readArguments(argv: readonly string[], newSeed: () => number): Arguments {
  let values: Values
  try {
    values = parseArgs({ args: [...argv], options: KNOWN, strict: true }).values
  } catch (error) {
    // Its first sentence says what is wrong, the others how it might be right.
    const [sentence] = String(error instanceof Error ? error.message : error).split(
      /\.?(?:\s|$)(?=[A-Z]|$)/,
    )
    return wrong(`${sentence}.`)
  }
  if (values.help === true) return { kind: 'help' }
  const seconds = wholeNumber(values.seconds ?? '30', SECONDS_MAX)
  if (!seconds) return wrong(notANumber('--seconds', values.seconds, `1 to ${SECONDS_MAX}`))
  const healSeconds = wholeNumber(values['heal-seconds'] ?? `${HEAL_SECONDS}`, SECONDS_MAX)
  if (!healSeconds) {
    return wrong(notANumber('--heal-seconds', values['heal-seconds'], `1 to ${SECONDS_MAX}`))
  }
  const seed = values.seed === undefined ? newSeed() : wholeNumber(values.seed, SEED_MAX)
  if (seed === undefined) return wrong(notANumber('--seed', values.seed, `0 to ${SEED_MAX}`))
  const store = STORES.find((name) => name === (values.store ?? 'sqlite'))
  if (store === undefined) return wrong(notOneOf('--store', values.store, STORES))
  const plant = PLANT_NAMES.find((name) => name === values.plant)
  if (values.plant !== undefined && plant === undefined) {
    return wrong(notOneOf('--plant', values.plant, PLANT_NAMES))
  }
  const neighbours = NEIGHBOURS.find((name) => name === (values.neighbours ?? 'on'))
  if (neighbours === undefined)
    return wrong(notOneOf('--neighbours', values.neighbours, NEIGHBOURS))
  const reportFile = values.report ?? `chaos-reports/${store}-${seed}.json`
  if (reportFile === '') return wrong('--report needs the name of a file.')
  const untilViolation = values['until-violation'] === true
  const keepLogs = values['keep-logs'] === true
  const times = { seconds, healSeconds }
  return {
    kind: 'run',
    options: { ...times, seed, store, reportFile, plant, neighbours, untilViolation, keepLogs },
  }
}

const KNOWN = {
  seconds: { type: 'string' },
  seed: { type: 'string' },
  store: { type: 'string' },
  'heal-seconds': { type: 'string' },
  report: { type: 'string' },
  plant: { type: 'string' },
  neighbours: { type: 'string' },
  'until-violation': { type: 'boolean' },
  'keep-logs': { type: 'boolean' },
  help: { type: 'boolean' },
} as const

type Values = {
  -readonly [Name in keyof typeof KNOWN]?:
    | ((typeof KNOWN)[Name]['type'] extends 'boolean' ? boolean : string)
    | undefined
}

function wholeNumber(text: string, max: number): number | undefined {
  const isNumber = /^\d{1,10}$/.test(text) && Number(text) <= max
  return isNumber ? Number(text) : undefined
}

function notANumber(name: string, given: string | undefined, allowed: string): string {
  return `${name} must be a whole number from ${allowed}, got ${JSON.stringify(given)}.`
}

function notOneOf(name: string, given: string | undefined, allowed: readonly string[]): string {
  return `${name} must be one of ${allowed.join(', ')}, got ${JSON.stringify(given)}.`
}

function wrong(sentence: string): Arguments {
  return { kind: 'wrong', sentence }
}
