import { parseArgs } from 'node:util'

export const STORES = ['sqlite', 'postgres', 'mysql'] as const

export type StoreName = (typeof STORES)[number]

export interface SoakOptions {
  readonly seconds: number
  readonly store: StoreName
  readonly seed: number
  /** Requests a second of one tenant; 0: no limit. */
  readonly rate: number
  /** Only the flood, measured with the limit and without it. */
  readonly onlyFlood: boolean
  /** Where package.json, dist and examples are; `undefined`: this repository. */
  readonly root: string | undefined
  readonly reportFolder: string
  /** Heap snapshots at the beginning and at the end, beside the report. */
  readonly snapshots: boolean
}

export const USAGE = `npm run soak -- [--seconds 300] [--store ${STORES.join('|')}] [--seed N]
  [--rate 200] [--flood] [--snapshots] [--reports folder]

--flood      measures only what a flood of one tenant does to another, with and without a limit
--rate       requests a second that a tenant may send; 0: no limit
--snapshots  writes a heap snapshot at the beginning and at the end`

/** Throws with a sentence for whoever typed it. */
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
