/** The part of a history in which the store answers, and only the hostile tenant misbehaves. */
import type { Scheduler } from 'fast-check'
import { isAnyRefusing } from '../process.ts'
import type { ClientPlan } from './client.ts'
import type { FairStep, Hostile } from './hostile.ts'
import { DurableNode } from './node.ts'
import { check, runAll } from './run-turns.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

export interface FairParts {
  readonly world: World
  readonly scheduler: Scheduler
  /** Sends the requests of another tenant's client. */
  readonly send: (plan: ClientPlan) => void
  /** Adds a receipt. Not awaited, because work in progress may lock its partition. */
  readonly leaveReceipt: (customer: number) => void
}

/** Short compared with every measured duration. */
const TICK_MS = 100
/** The longest time that a node waits for a lost call after the store has healed. */
const RECOVERY_MS = TIMES.storeGivesUpMs + TIMES.relayPauseMs
/** Far longer than any bound: work that waits so long has broken it. */
const DRAIN_MS_MAX = 120_000
/** First key of the requests that arrive in this phase, above the keys of all other clients. */
const FIRST_KEY = 120
/** Keys per kind of effect and customer. */
const SLOTS = 12

export async function beFair(parts: FairParts, hostile: Hostile): Promise<void> {
  const { world, scheduler } = parts
  await recover(world, scheduler, hostile)
  for (const [nth, step] of hostile.plan.steps.entries()) {
    await carryOut(parts, step, nth)
    check(world)
  }
  for (const node of world.nodes) node.resume()
  world.fairness.disturb()
  const endMs = world.clock.monotonicMs() + DRAIN_MS_MAX
  do await tick(world, scheduler, hostile)
  while (world.fairness.isAnyWaiting && world.clock.monotonicMs() < endMs)
  if (world.fairness.isAnyWaiting) world.violate('late: work waits without a bound')
  await hostile.leave()
  check(world)
}

async function recover(world: World, scheduler: Scheduler, hostile: Hostile): Promise<void> {
  const { clock } = world
  const endMs = clock.monotonicMs() + RECOVERY_MS
  while (clock.monotonicMs() < endMs || isAnyRefusing(world.nodes)) {
    if (clock.monotonicMs() > endMs + RECOVERY_MS)
      world.violate('a node never stops refusing claims')
    check(world)
    await hostile.flood()
    await runAll(world, scheduler)
    clock.advance(isAnyRefusing(world.nodes) ? TIMES.storeTimeoutMs / 8 : TIMES.leaseMs / 4)
  }
}

async function carryOut(parts: FairParts, step: FairStep, nth: number): Promise<void> {
  const { world, scheduler, send, leaveReceipt } = parts
  const { nodes, fairness } = world
  switch (step.kind) {
    case 'wait':
      for (let ms = 0; ms < step.ms; ms += TICK_MS) await tick(world, scheduler, world.hostile!)
      return
    case 'arrive': {
      const key = FIRST_KEY + nth * SLOTS + (step.slot % SLOTS)
      return send({ key, attempts: [{ node: nth, accepts: step.accepts, waits: false }] })
    }
    case 'receipt':
      return leaveReceipt(step.customer)
    case 'restart': {
      const node = nodeOf(world, step.node)
      // The new node starts first, so that one node always serves.
      nodes.push(new DurableNode(world, nodes.length))
      node.crash()
      return fairness.disturb()
    }
    case 'stall':
      nodeOf(world, step.node).stall()
      return fairness.disturb()
    case 'resume':
      nodeOf(world, step.node).resume()
      return fairness.disturb()
  }
}

function nodeOf({ nodes }: World, nth: number): DurableNode {
  const living = nodes.filter(({ alive }) => alive)
  return living[nth % living.length]!
}

async function tick(world: World, scheduler: Scheduler, hostile: Hostile): Promise<void> {
  await hostile.flood()
  await runAll(world, scheduler)
  await world.fairness.look()
  check(world)
  world.clock.advance(TICK_MS)
}
