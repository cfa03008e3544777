/** One simulated run: executes a plan, heals the world, and checks the invariants. */
import type { Scheduler } from 'fast-check'
import { newRecordId } from '../../../src/core/record/identity.ts'
import { encodeValue } from '../../../src/durable/values.ts'
import { flush } from '../world.ts'
import { customerOf, runClient, send, tenantOf, type Answer, type ClientPlan } from './client.ts'
import { beFair } from './fair-phase.ts'
import type { HostilePlan } from './hostile.ts'
import { judge, judgeAnswers, judgeEnd } from './judge.ts'
import { isAnyRefusing } from '../process.ts'
import { DurableNode } from './node.ts'
import { actHonestly, isAtRest } from './operator.ts'
import { check, runAll, runOne } from './run-turns.ts'
import { TIMES } from './times.ts'
import { World, type Sabotage, type Troubles } from './world.ts'

export type Step =
  | { readonly kind: 'run'; readonly turns: number }
  | { readonly kind: 'advance'; readonly ms: number }
  /** Moves only the wall clock, forward or back. */
  | { readonly kind: 'jump'; readonly ms: number }
  | { readonly kind: 'crash'; readonly node: number }
  | { readonly kind: 'stall'; readonly node: number }
  | { readonly kind: 'resume'; readonly node: number }
  /** Closes everything in a node in order, and ends the process after that. */
  | { readonly kind: 'close'; readonly node: number }
  /** The provider notifies a node of one of its charges, possibly early, late or repeatedly. */
  | { readonly kind: 'webhook'; readonly node: number; readonly charge: number }

export interface Plan {
  readonly clients: readonly ClientPlan[]
  readonly steps: readonly Step[]
  readonly troubles: Troubles
  /** Receipts that are already due when the nodes start, by customer. */
  readonly backlog: readonly number[]
  /** A tenant that floods during the whole history, if any. */
  readonly hostile: HostilePlan | undefined
  /** Seed for the random numbers of the package. */
  readonly salt: number
}

const NODES = 2
/** Number of rounds with faults after the last step, half a lease each. */
const FALTERING_ROUNDS = 12
/** The maximum number of rounds in which the operator acts. */
const OPERATOR_ROUNDS = 4
/** A healthy world is at rest well before this. */
const REST_MS_MAX = 20 * 60_000

export async function simulate(
  scheduler: Scheduler,
  plan: Plan,
  sabotage: Sabotage = {},
): Promise<void> {
  const random = Math.random
  Math.random = seeded(plan.salt)
  const unplant = sabotage.plant?.()
  try {
    await carryThrough(scheduler, plan, new World(scheduler, plan, sabotage))
  } finally {
    unplant?.()
    Math.random = random
  }
}

async function carryThrough(scheduler: Scheduler, plan: Plan, world: World): Promise<void> {
  await world.hostile?.flood()
  for (const customer of plan.backlog) await leaveReceipt(world, customer)
  for (let id = 0; id < NODES; id++) world.nodes.push(new DurableNode(world, id))
  const answers: Answer[] = []
  const answered = (answer: Answer) => answers.push(answer)
  const keys = new Set<number>()
  const sent: Promise<void>[] = []
  const clientOf = (client: ClientPlan) => {
    keys.add(client.key)
    sent.push(runClient(world, client, answered))
  }
  for (const client of plan.clients) clientOf(client)

  for (const step of plan.steps) {
    await world.hostile?.flood()
    await carryOut(world, scheduler, step)
    check(world)
  }
  for (const node of world.nodes) node.resume()
  // Started work continues while everything is still faulty; then the world heals.
  await continueWithFaults(world, scheduler)
  world.heal()
  if (world.hostile !== undefined) {
    const leave = (customer: number) => sent.push(leaveReceipt(world, customer))
    await beFair({ world, scheduler, send: clientOf, leaveReceipt: leave }, world.hostile)
  }
  const all = trackEnd(Promise.all(sent))
  await comeToRest(world, scheduler, all)
  await judge(world)
  judgeAnswers(world, answers)
  check(world)

  await clearUp(world, scheduler, all)
  await askAgain(world, scheduler, { keys, answered })
  await judge(world)
  await judgeEnd(world, answers)
  check(world)
}

/** Adds a receipt from a payment before this history. */
async function leaveReceipt(world: World, of: number): Promise<void> {
  const { store, clock } = world
  const recordId = `before-${world.earlierPayments++}`
  const customer = customerOf(of)
  await store.transact((tx) => {
    store.write(tx, { recordId, customer, what: 'booked', chargeId: undefined })
    return store.durable.outbox.add(tx, {
      id: newRecordId(clock.nowMs()),
      topic: 'receipt',
      tenant: tenantOf(customer),
      key: undefined,
      partition: customer,
      payload: encodeValue('a receipt', { recordId, customer }),
      delayMs: 0,
    })
  })
}

async function carryOut(world: World, scheduler: Scheduler, step: Step): Promise<void> {
  switch (step.kind) {
    case 'run':
      for (let turn = 0; turn < step.turns; turn++) await runOne(scheduler)
      return
    case 'advance':
      world.clock.advance(step.ms)
      return flush()
    case 'jump':
      return world.jump(step.ms)
    case 'crash':
      if (mayLose(world, step.node)) world.nodes[step.node]!.crash()
      return
    case 'close':
      if (mayLose(world, step.node)) world.nodes[step.node]!.close()
      return
    case 'stall':
      return world.nodes[step.node]!.stall()
    case 'resume':
      world.nodes[step.node]!.resume()
      return flush()
    case 'webhook':
      return tellOf(world, step.node, step.charge)
  }
}

function tellOf(world: World, id: number, nth: number): void {
  const { ledger } = world.provider
  const node = world.nodes[id]!
  if (!node.running || ledger.length === 0) return
  const result = ledger[nth % ledger.length]!
  const resolving = node.reconciler.resolve({ downstreamKey: result.key }, { kind: 'done', result })
  // The provider may repeat a failed webhook or not; the reconciler asks in any case.
  resolving.catch(() => undefined)
}

/** One node must keep running, so that work can finish. */
function mayLose(world: World, id: number): boolean {
  return world.nodes.some((node) => node.id !== id && node.serves)
}

function trackEnd(promise: Promise<unknown>): { ended: boolean } {
  const state = { ended: false }
  void promise.then(() => {
    state.ended = true
  })
  return state
}

async function continueWithFaults(world: World, scheduler: Scheduler): Promise<void> {
  for (let round = 0; round < FALTERING_ROUNDS; round++) {
    await world.hostile?.flood()
    await runAll(world, scheduler)
    world.clock.advance(TIMES.leaseMs / 2)
  }
}

/** Moves time until no work is left, or until it is clear that work hangs. */
async function comeToRest(
  world: World,
  scheduler: Scheduler,
  all: { readonly ended: boolean },
): Promise<void> {
  const { clock } = world
  const endMs = clock.monotonicMs() + REST_MS_MAX
  while (clock.monotonicMs() < endMs) {
    await runAll(world, scheduler)
    if (isAnyRefusing(world.nodes)) {
      clock.advance(TIMES.storeTimeoutMs / 8)
      continue
    }
    const rest = await isAtRest(world)
    if (all.ended && rest === 'quiet') return
    // While work is in progress, time moves in steps that let leases be renewed.
    clock.advance(all.ended && rest === 'waiting' ? TIMES.leaseMs * 2 : TIMES.leaseMs / 4)
  }
  await judge(world)
  world.violate('the world did not come to rest: work hangs')
  check(world)
}

/**
 * The operator acts when no request is in flight, and acts again if an old request was still
 * in progress.
 */
async function clearUp(
  world: World,
  scheduler: Scheduler,
  all: { readonly ended: boolean },
): Promise<void> {
  for (let round = 0; round < OPERATOR_ROUNDS; round++) {
    world.clock.advance(TIMES.storeGivesUpMs)
    await comeToRest(world, scheduler, all)
    if ((await actHonestly(world)) === 0) return
    await comeToRest(world, scheduler, all)
  }
}

/** Retries every key once after everything has healed. */
async function askAgain(
  world: World,
  scheduler: Scheduler,
  { keys, answered }: { keys: ReadonlySet<number>; answered: (answer: Answer) => void },
): Promise<void> {
  const node = world.nodes.find(({ serves }) => serves)!
  const asked = [...keys].map(async (key) => {
    const reply = await send(node, key, { accepts: false, waits: true })
    if (reply === undefined)
      world.violate(`stuck: key ${key} has no answer after everything healed`)
    else answered({ key, reply })
  })
  await comeToRest(world, scheduler, trackEnd(Promise.all(asked)))
}

/** Mulberry32: small, and sufficiently random for jitter. */
function seeded(salt: number): () => number {
  let state = salt
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
