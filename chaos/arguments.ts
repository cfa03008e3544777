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
  /** The maximum time from the end of the disruptions until all work is at rest. */
  readonly healSeconds: number
  readonly plant: PlantName | undefined
  /** Bad neighbours of the other tenants. `compare` makes one run without and one with them. */
  readonly neighbours: NeighboursChoice
  /** Ends the run at the first violation that shows while it runs. */
  readonly untilViolation: boolean
  /** Keeps the output of the processes, even if no violation was found. */
  readonly keepLogs: boolean
}

export type Arguments =
  | { readonly kind: 'run'; readonly options: ChaosOptions }
  | { readonly kind: 'help' }
  | { readonly kind: 'wrong'; readonly sentence: string }

const SECONDS_MAX = 86_400
/**
 * Work that failed often is retried after at most five minutes; a lost call costs half a minute.
 */
const HEAL_SECONDS = 360
const SEED_MAX = 2 ** 32 - 1

export const HELP = `npm run chaos -- [options]

Runs the payments service as real processes (two API nodes, two workers, a provider, a database)
with clients that retry. Disrupts processes, connections and clocks, waits until the service has
recovered, and checks that no effect is duplicate, diverging, lost, stuck or leaked.

  --seconds N         duration of the disruptions (30)
  --seed N            selects requests and disruptions; new by default, always printed
  --store NAME        ${STORES.join(', ')} (sqlite)
  --heal-seconds N    maximum time until all work is at rest after that (${HEAL_SECONDS})
  --report FILE       file of the report (chaos-reports/<store>-<seed>.json)
  --plant NAME        plants a bug that the run must find: ${PLANT_NAMES.join(', ')}
  --neighbours WHICH  ${NEIGHBOURS.join(', ')} (on): a tenant that floods accepted work, a provider
                      that hangs for one operation, and a topic whose handler never ends;
                      compare makes one run without and one with them, and checks that the p99 of
                      the other tenants' waits stays within twice that of the run without
  --until-violation   ends at the first violation during the run
  --keep-logs         keeps the logs of the processes beside the report in any case
  --help              prints this text

Exit code: 0 no violation, 1 a violation or other tenants waited too long, 2 the run failed.
`

export function readArguments(argv: readonly string[], newSeed: () => number): Arguments {
  let values: Values
  try {
    values = parseArgs({ args: [...argv], options: KNOWN, strict: true }).values
  } catch (error) {
    // The first sentence of the message says what is wrong, the others how to fix it.
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
