/**
 * Runs histories in a copy of the sources with a planted bug until one violates an invariant, then
 * reports it and exits with 1. Does not shrink the history.
 */
import fc from 'fast-check'
import { plans } from './plans.ts'
import { simulate } from './simulate.ts'

const { failed, numRuns, errorInstance, seed } = await fc.check(
  fc.asyncProperty(fc.scheduler(), plans, simulate),
  { numRuns: Number(process.argv[2]), endOnFailure: true },
)
if (failed) {
  console.log(
    `an invariant was violated in history ${numRuns} of seed ${seed}: ${String(errorInstance)}`,
  )
  process.exitCode = 1
}
