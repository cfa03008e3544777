/**
 * Checks the checker: each bug is put between the nodes and the store, or between them and the
 * world outside, and the simulation must notice within the runs that it makes by itself.
 */
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { BUGS } from './durable/planted.ts'
import { DURABLE_RUNS, DURABLE_TIMEOUT_MS, durableRuns, hostileRuns } from './durable/runs.ts'

it.each(BUGS)(
  'notices when $name',
  async ({ sabotage, noticed, isUnfair }) => {
    const result = await fc.check((isUnfair === true ? hostileRuns : durableRuns)(sabotage), {
      numRuns: DURABLE_RUNS,
      endOnFailure: true,
    })
    expect(result.failed, 'nobody noticed').toBe(true)
    expect(String(result.errorInstance)).toMatch(noticed)
  },
  DURABLE_TIMEOUT_MS,
)
