// Takes about 25 s.
import fc, { type IAsyncProperty } from 'fast-check'
import { expect, it } from 'vitest'
import {
  DURABLE_RUNS,
  DURABLE_TIMEOUT_MS,
  durableRuns,
  HOSTILE_RUNS,
  hostileRuns,
} from './durable/runs.ts'

/** Uses a new seed every time. A failure prints its seed and path, which replay it. */
async function expectKept<Drawn>(
  runs: IAsyncProperty<Drawn>,
  numRuns: number,
  variables: string,
): Promise<void> {
  const seed = process.env[`${variables}_SEED`]
  const path = process.env[`${variables}_PATH`]
  const result = await fc.check(runs, {
    numRuns,
    ...(seed === undefined ? {} : { seed: Number(seed) }),
    ...(path === undefined ? {} : { path }),
  })
  if (result.failed) {
    // The path of the run as it was drawn: the shrunk run depends on the runs before it.
    const drawn = result.counterexamplePath?.split(':')[0]
    const again = `${variables}_SEED=${result.seed} ${variables}_PATH=${drawn}`
    throw new Error(`replay with ${again}\n${fc.stringify(result.counterexample)}`, {
      cause: result.errorInstance,
    })
  }
  if (path === undefined) expect(result.numRuns).toBe(numRuns)
}

it(
  'completes every operation once, in any order of events, under any fault',
  () => expectKept(durableRuns(), DURABLE_RUNS, 'ONCEKEY_SIM'),
  DURABLE_TIMEOUT_MS,
)

it(
  'starts due work of other tenants in time beside a hostile tenant',
  () => expectKept(hostileRuns(), HOSTILE_RUNS, 'ONCEKEY_SIM_HOSTILE'),
  DURABLE_TIMEOUT_MS,
)
