/** How many runs there are, and what one is. */
import fc from 'fast-check'
import { plans } from './plans.ts'
import { simulate } from './simulate.ts'
import type { Sabotage } from './world.ts'

/** As many as fit into a few seconds on a busy machine; ONCEKEY_SIM_RUNS for a long run. */
export const DURABLE_RUNS = Number(process.env['ONCEKEY_SIM_RUNS'] ?? 400)

export const durableRuns = (sabotage: Sabotage = {}) =>
  fc.asyncProperty(fc.scheduler(), plans, (scheduler, plan) => simulate(scheduler, plan, sabotage))
