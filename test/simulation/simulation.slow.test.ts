// Takes about 33 s.
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { plans } from './plans.ts'
import { simulate } from './simulate.ts'

/** Enough to reach every interleaving of two or three faults many times. */
const RUNS = Number(process.env['ONCEKEY_SIM_RUNS'] ?? 6_000)
/** A new seed every time. A failure prints its seed and path, which replay it. */
const SEED = process.env['ONCEKEY_SIM_SEED']
const PATH = process.env['ONCEKEY_SIM_PATH']

it('a key has one effect and one reply in any order of events, faults and crashes', async () => {
  const property = fc.asyncProperty(fc.scheduler(), plans, simulate)
  const result = await fc.check(property, {
    numRuns: RUNS,
    ...(SEED === undefined ? {} : { seed: Number(SEED) }),
    ...(PATH === undefined ? {} : { path: PATH }),
  })
  if (result.failed) {
    const again = `ONCEKEY_SIM_SEED=${result.seed} ONCEKEY_SIM_PATH=${result.counterexamplePath}`
    throw new Error(`replay with ${again}\n${fc.stringify(result.counterexample)}`, {
      cause: result.errorInstance,
    })
  }
  if (PATH === undefined) expect(result.numRuns).toBe(RUNS)
}, 300_000)
