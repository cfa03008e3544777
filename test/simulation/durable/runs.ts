/** The number of runs, and one run as a property. */
import fc, { type Arbitrary } from 'fast-check'
import { plans, plansWithHostile } from './plans.ts'
import { simulate, type Plan } from './simulate.ts'
import type { Sabotage } from './world.ts'

/** As many as fit into a few seconds. Set ONCEKEY_SIM_DURABLE_RUNS for a long run. */
export const DURABLE_RUNS = Number(process.env['ONCEKEY_SIM_DURABLE_RUNS'] ?? 400)

/** A run with the hostile tenant takes twenty times as long, and is rarely drawn otherwise. */
export const HOSTILE_RUNS = Math.ceil(DURABLE_RUNS / 40)

/** Far longer than the runs take, even on a busy machine. */
export const DURABLE_TIMEOUT_MS = 60_000 + DURABLE_RUNS * 500

export const durableRuns = (sabotage: Sabotage = {}) => runsOf(plans, sabotage)

/** Runs that all contain the hostile tenant. */
export const hostileRuns = (sabotage: Sabotage = {}) => runsOf(plansWithHostile, sabotage)

const runsOf = (drawn: Arbitrary<Plan>, sabotage: Sabotage) =>
  fc.asyncProperty(fc.scheduler(), drawn, (scheduler, plan) => simulate(scheduler, plan, sabotage))
