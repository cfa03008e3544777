/**
 * Tests the simulation: each bug is planted between the nodes and the store, or between the nodes
 * and their environment, and the simulation must detect it within its default number of runs.
 */
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { BUGS } from './durable/planted.ts'
import { DURABLE_RUNS, DURABLE_TIMEOUT_MS, durableRuns, hostileRuns } from './durable/runs.ts'

it.each(BUGS)(
  'the durable simulation detects when $name',
  async ({ sabotage, noticed, isUnfair }) => {
    const result = await fc.check((isUnfair === true ? hostileRuns : durableRuns)(sabotage), {
      numRuns: DURABLE_RUNS,
      endOnFailure: true,
    })
    expect(result.failed, 'the simulation did not detect the bug').toBe(true)
    expect(String(result.errorInstance)).toMatch(noticed)
  },
  DURABLE_TIMEOUT_MS,
)
