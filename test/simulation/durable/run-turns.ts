/** Runs the scheduled tasks while no time passes. */
import type { Scheduler } from 'fast-check'
import { flush } from '../world.ts'
import type { World } from './world.ts'

/** More turns than this at one point in time are an endless loop. */
const TURNS_MAX = 2_000
/** The limit while a tenant floods. */
const TURNS_MAX_FLOODED = 20_000

export async function runOne(scheduler: Scheduler): Promise<void> {
  if (scheduler.count() > 0) await scheduler.waitNext(1)
  await flush()
}

export async function runAll(world: World, scheduler: Scheduler): Promise<void> {
  const turnsMax = world.hostile === undefined ? TURNS_MAX : TURNS_MAX_FLOODED
  await flush()
  for (let turn = 0; scheduler.count() > 0; turn++) {
    await runOne(scheduler)
    if (turn > turnsMax) world.violate('a call repeats without end while no time passes')
    check(world)
  }
}

export function check(world: World): void {
  if (world.violation !== undefined) throw world.violation
}
