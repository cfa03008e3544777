import { parseArgs } from 'node:util'

export const STORES = ['sqlite', 'postgres', 'mysql'] as const

export type StoreName = (typeof STORES)[number]

export interface SoakOptions {
  readonly seconds: number
  readonly store: StoreName
  readonly seed: number
  /** Requests per second of one tenant; 0 means no limit. */
  readonly rate: number
  /** Measures only the flood, with and without the limit. */
  readonly onlyFlood: boolean
  /** The folder of package.json, dist and examples; `undefined` is this repository. */
  readonly root: string | undefined
  readonly reportFolder: string
  /** Writes heap snapshots at the start and at the end, beside the report. */
  readonly snapshots: boolean
}

export const USAGE = `npm run soak -- [--seconds 300] [--store ${STORES.join('|')}] [--seed N]
  [--rate 200] [--flood] [--snapshots] [--reports folder]

--flood      measures only how a flood of one tenant affects another, with and without a limit
--rate       requests per second that a tenant may send; 0 means no limit
--snapshots  writes a heap snapshot at the start and at the end`

/** Throws an error with one sentence about a wrong argument. */
export function readSoakOptions(args: readonly string[]): SoakOptions {
  const { values } = parseArgs({
    args: [...args],
    options: {
      seconds: { type: 'string', default: '300' },
      store: { type: 'string', default: 'sqlite' },
      seed: { type: 'string', default: '1' },
      rate: { type: 'string', default: '200' },
      flood: { type: 'boolean', default: false },
      snapshots: { type: 'boolean', default: false },
      root: { type: 'string' },
      reports: { type: 'string', default: 'chaos-reports' },
    },
  })
  const store = STORES.find((name) => name === values.store)
  if (store === undefined) throw new Error(`--store must be ${STORES.join(', ')}`)
  return {
    store,
    seconds: wholeNumber('seconds', values.seconds, 5),
    seed: wholeNumber('seed', values.seed, 0),
    rate: wholeNumber('rate', values.rate, 0),
    onlyFlood: values.flood,
    snapshots: values.snapshots,
    root: values.root,
    reportFolder: values.reports,
  }
}

function wholeNumber(name: string, given: string, min: number): number {
  const value = Number(given)
  if (/^\d{1,9}$/.test(given) && value >= min) return value
  throw new Error(`--${name} must be a whole number from ${min}, got ${JSON.stringify(given)}`)
}
