/**
 * Runs histories until one breaks a promise, in a copy of the sources with a bug in it: then it
 * says so and exits with 1. There is no need to find the shortest one.
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
    `a promise was broken in history ${numRuns} of seed ${seed}: ${String(errorInstance)}`,
  )
  process.exitCode = 1
}
