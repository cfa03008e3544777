/** How many runs there are, and what one is. */
import fc, { type Arbitrary } from 'fast-check'
import { plans, plansWithHostile } from './plans.ts'
import { simulate, type Plan } from './simulate.ts'
import type { Sabotage } from './world.ts'

/** As many as fit into a few seconds; for a long run, ONCEKEY_SIM_DURABLE_RUNS. */
export const DURABLE_RUNS = Number(process.env['ONCEKEY_SIM_DURABLE_RUNS'] ?? 400)

/** Each takes twenty times as long as the others, and is drawn seldom: these always have some. */
export const HOSTILE_RUNS = Math.ceil(DURABLE_RUNS / 40)

/** Far longer than they take, even on a machine that has much else to do. */
export const DURABLE_TIMEOUT_MS = 60_000 + DURABLE_RUNS * 500

export const durableRuns = (sabotage: Sabotage = {}) => runsOf(plans, sabotage)

/** With the hostile tenant in each of them. */
export const hostileRuns = (sabotage: Sabotage = {}) => runsOf(plansWithHostile, sabotage)

const runsOf = (drawn: Arbitrary<Plan>, sabotage: Sabotage) =>
  fc.asyncProperty(fc.scheduler(), drawn, (scheduler, plan) => simulate(scheduler, plan, sabotage))
