import { parseArgs } from 'node:util'
import { GROUPS, type Group } from '../report/results.ts'
import { FULL, QUICK, type Scale } from './scale.ts'

/** The groups left out only confirm old design choices. */
const QUICK_GROUPS = GROUPS.filter((group) => group !== 'choices' && group !== 'relay')

export const HELP = `npm run bench -- [options]

Measures oncekey on servers that it starts and ends (PostgreSQL, MariaDB, Redis), against bare
routes, hand-written SQL and other packages, in interleaved rounds. Takes three quarters of an
hour; the first run also installs the other packages (bench/node_modules).

  --quick           a rough result in two minutes: ${QUICK.rounds} short rounds, small tables,
                    without choices and relay
  --only GROUPS     only these groups, separated by commas. Targets that need other groups are
                    not judged
                    ${GROUPS.join(', ')}
  --rounds N        number of counted rounds (${FULL.rounds})
  --round-ms N      duration of each line in each round (${FULL.roundMs})
  --json FILE       writes all measurements as JSON
  --svg FILE        file of the chart; a complete run without --quick always writes one
  --help            prints this text

Exit code: 0, or 1 if a target is missed by more than the spread of the rounds, or 2 if a
measurement failed. A quick run judges no target.
`

export interface Command {
  readonly kind: 'run'
  readonly scale: Scale
  readonly groups: readonly Group[]
  readonly json: string | undefined
  /** `undefined` if no chart was requested. */
  readonly svg: string | undefined
  readonly isQuick: boolean
  /** A complete run that is not quick, whose figures may be published. */
  readonly isWhole: boolean
}

export type ParsedCommand =
  | Command
  | { readonly kind: 'help' }
  | { readonly kind: 'wrong'; readonly text: string }

export function parseCommand(args: readonly string[]): ParsedCommand {
  const parsed = readOptions(args)
  if (typeof parsed === 'string') return wrong(parsed)
  if (parsed.help === true) return { kind: 'help' }
  const isQuick = parsed.quick === true
  const base = isQuick ? QUICK : FULL
  const rounds = wholeNumber(parsed.rounds, base.rounds)
  const roundMs = wholeNumber(parsed['round-ms'], base.roundMs)
  if (rounds === undefined) return wrong(`--rounds must be a whole number, got ${parsed.rounds}`)
  if (roundMs === undefined) {
    return wrong(`--round-ms must be a whole number, got ${parsed['round-ms']}`)
  }
  const names = parsed.only?.split(',') ?? (isQuick ? QUICK_GROUPS : GROUPS)
  const unknown = names.find((name) => !(GROUPS as readonly string[]).includes(name))
  if (unknown !== undefined) {
    return wrong(`--only ${unknown}: the groups are ${GROUPS.join(', ')}`)
  }
  const groups = GROUPS.filter((group) => names.includes(group))
  const isWhole = !isQuick && groups.length === GROUPS.length && rounds >= FULL.rounds
  const scale = { ...base, rounds, roundMs }
  return { kind: 'run', scale, groups, json: parsed.json, svg: parsed.svg, isQuick, isWhole }
}

interface Options {
  readonly help?: boolean
  readonly quick?: boolean
  readonly only?: string
  readonly rounds?: string
  readonly 'round-ms'?: string
  readonly json?: string
  readonly svg?: string
}

/** Returns a text if the options are invalid. */
function readOptions(args: readonly string[]): Options | string {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        help: { type: 'boolean' },
        quick: { type: 'boolean' },
        only: { type: 'string' },
        rounds: { type: 'string' },
        'round-ms': { type: 'string' },
        json: { type: 'string' },
        svg: { type: 'string' },
      },
    })
    return values
  } catch (error) {
    return (error as Error).message
  }
}

function wholeNumber(text: string | undefined, fallback: number): number | undefined {
  if (text === undefined) return fallback
  const value = Number(text)
  return Number.isInteger(value) && value > 0 ? value : undefined
}

function wrong(text: string): ParsedCommand {
  return { kind: 'wrong', text }
}
