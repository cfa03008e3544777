import fc from 'fast-check'
import { expect, it } from 'vitest'
import { DURABLE_RUNS, DURABLE_TIMEOUT_MS, durableRuns } from './durable/runs.ts'

/** A new seed every time; a failure prints its seed and path, which replay it. */
const SEED = process.env['ONCEKEY_SIM_SEED']
const PATH = process.env['ONCEKEY_SIM_PATH']

it(
  'brings every operation to one end, in any order of events, under any fault',
  async () => {
    const result = await fc.check(durableRuns(), {
      numRuns: DURABLE_RUNS,
      ...(SEED === undefined ? {} : { seed: Number(SEED) }),
      ...(PATH === undefined ? {} : { path: PATH }),
    })
    if (result.failed) {
      // Of the run as it was drawn: what it was shrunk to below depends on the runs before it.
      const path = result.counterexamplePath?.split(':')[0]
      const again = `ONCEKEY_SIM_SEED=${result.seed} ONCEKEY_SIM_PATH=${path}`
      throw new Error(`replay with ${again}\n${fc.stringify(result.counterexample)}`, {
        cause: result.errorInstance,
      })
    }
    if (PATH === undefined) expect(result.numRuns).toBe(DURABLE_RUNS)
  },
  DURABLE_TIMEOUT_MS,
)
