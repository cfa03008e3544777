/** One simulated run: a plan, carried out, healed, and judged. */
import type { Scheduler } from 'fast-check'
import { newRecordId } from '../../../src/core/identity.ts'
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
  /** The wall clock alone, forwards or backwards. */
  | { readonly kind: 'jump'; readonly ms: number }
  | { readonly kind: 'crash'; readonly node: number }
  | { readonly kind: 'stall'; readonly node: number }
  | { readonly kind: 'resume'; readonly node: number }
  /** Everything of a node is closed in its order, and the process ends after it. */
  | { readonly kind: 'close'; readonly node: number }
  /** The provider tells a node of one of its charges, perhaps early, late or again. */
  | { readonly kind: 'webhook'; readonly node: number; readonly charge: number }

export interface Plan {
  readonly clients: readonly ClientPlan[]
  readonly steps: readonly Step[]
  readonly troubles: Troubles
  /** Receipts that wait already when the nodes start, by their customer. */
  readonly backlog: readonly number[]
  /** A tenant that floods all the time; `undefined`: there is none. */
  readonly hostile: HostilePlan | undefined
  /** For what the package itself draws at random. */
  readonly salt: number
}

const NODES = 2
/** How long it goes on after the last step, half a lease at a time. */
const FALTERING_ROUNDS = 12
/** How often an operator comes. */
const OPERATOR_ROUNDS = 4
/** A healthy world comes to rest well before this. */
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
  // What was begun goes on while everything still falters; then the world heals.
  await falter(world, scheduler)
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

/** What an earlier payment has left to be sent. */
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
  const told = node.reconciler.resolve({ downstreamKey: result.key }, { kind: 'done', result })
  // A webhook that fails is sent again by the provider, or not; the reconciler asks in any case.
  told.catch(() => undefined)
}

/** One node goes on serving: somebody has to tell the tale. */
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

async function falter(world: World, scheduler: Scheduler): Promise<void> {
  for (let round = 0; round < FALTERING_ROUNDS; round++) {
    await world.hostile?.flood()
    await runAll(world, scheduler)
    world.clock.advance(TIMES.leaseMs / 2)
  }
}

/** Time passes until nothing is left to be done, or it shows that something hangs. */
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
    // While somebody holds something, time goes in steps that let leases be renewed.
    clock.advance(all.ended && rest === 'waiting' ? TIMES.leaseMs * 2 : TIMES.leaseMs / 4)
  }
  await judge(world)
  world.violate('the world did not come to rest: something hangs')
  check(world)
}

/**
 * An operator acts, once nothing is on its way any more, and again where something of old was
 * still under way.
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

/** One more retry of every key, when all is well again. */
async function askAgain(
  world: World,
  scheduler: Scheduler,
  { keys, answered }: { keys: ReadonlySet<number>; answered: (answer: Answer) => void },
): Promise<void> {
  const node = world.nodes.find(({ serves }) => serves)!
  const asked = [...keys].map(async (key) => {
    const reply = await send(node, key, { accepts: false, waits: true })
    if (reply === undefined) world.violate(`stuck: after all has healed, key ${key} has no answer`)
    else answered({ key, reply })
  })
  await comeToRest(world, scheduler, trackEnd(Promise.all(asked)))
}

/** Mulberry32: small, and random enough for jitter. */
function seeded(salt: number): () => number {
  let state = salt
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
