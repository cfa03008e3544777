/** The shared store as one process reaches it, over a network with the faults of the plan. */
import type {
  DurableStore,
  MessageSettlement,
  OutboxStore,
  PhaseStore,
  Step,
  StepOutcome,
} from '../../../src/core/store/durable-store.ts'
import type { OperatorStore } from '../../../src/core/store/operator-store.ts'
import type { Lease, Store } from '../../../src/core/store/store.ts'
import { NEVER } from '../process.ts'
import type { DurableNode } from './node.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

type Call = <Answer>(name: string, write: () => Promise<Answer>) => Promise<Answer>

export function faultyStore(node: DurableNode): Store & { readonly durable: DurableStore } {
  const { world } = node
  const { store } = world
  const call = callerOf(node)
  return {
    name: `node-${node.id}`,
    batching: { rowsMax: 3, flushesMax: 2 },
    claim: (requests) =>
      call('claim', async () => {
        const outcomes = await store.claim(requests)
        for (const outcome of outcomes) {
          if (outcome.kind === 'claimed') world.claimed(outcome.lease)
        }
        return outcomes
      }),
    settle: (settlements) => call('settle', () => store.settle(settlements)),
    renew: (renewals) => call('renew', () => store.renew(renewals)),
    resolve: (verdicts) => call('resolve', () => store.resolve(verdicts)),
    sweep: (request) => call('sweep', () => store.sweep(request)),
    reap: (request) => call('reap', () => store.reap(request)),
    read: (ref) => call('read', () => store.read(ref)),
    list: (query) => call('list', () => store.list(query)),
    durable: {
      phases: faultyPhases(node, call),
      outbox: faultyOutbox(node, call),
      operator: faultyOperatorStore(world, call),
    },
  }
}

function callerOf(node: DurableNode): Call {
  const { world } = node
  return async (name, write) => {
    if (!node.alive) return NEVER
    const fate = world.next('fates') ?? 'ok'
    if (fate === 'never') return NEVER
    if (fate === 'late') {
      world.clock.after(TIMES.lateMs, () => void write())
      return NEVER
    }
    await world.turn(`node ${node.id} sends ${name}`)
    if (fate === 'fail_before') throw new Error(`${name} failed before it was written`)
    const answer = await write()
    if (fate === 'lost') return NEVER
    await node.turn(`hears of ${name}`)
    if (fate === 'fail_after') throw new Error(`${name} failed after it was written`)
    return answer
  }
}

function faultyPhases(node: DurableNode, call: Call): PhaseStore {
  const { world } = node
  const { phases } = world.durable
  return {
    advance: (lease, work) => advance(node, lease, work),
    record: (lease, step) =>
      call(`a step (${step.phase?.kind ?? step.end?.kind})`, async () => {
        const isHeld = world.holds(lease)
        return watched(world, isHeld, await phases.record(lease, step))
      }),
    load: (recordId) => call('load', () => phases.load(recordId)),
    due: (query) => call('due', () => phases.due(query)),
    orphans: (query) => call('orphans', () => phases.orphans(query)),
  }
}

function watched(world: World, isHeld: boolean, outcome: StepOutcome): StepOutcome {
  if (!isHeld && outcome.kind === 'advanced') {
    world.violate('a fenced holder has advanced its operation')
  }
  return outcome
}

/**
 * A database transaction: the work runs concurrently with other work, and the commit is one step.
 * The plan decides the fate of the commit; the worst is a commit that fails here and applies later.
 */
async function advance(
  node: DurableNode,
  lease: Lease,
  work: (tx: unknown) => Step | Promise<Step>,
): Promise<StepOutcome> {
  const { world } = node
  if (!node.alive) return NEVER
  const fate = world.next('fates') ?? 'ok'
  if (fate === 'never') return NEVER
  await node.turn('begins a transaction')
  if (fate === 'fail_before') throw new Error('the transaction did not begin')
  let isHeld = false
  let broken: (error: Error) => void = () => undefined
  const breaks = new Promise<never>((_, reject) => {
    broken = reject
  })
  const running = world.durable.phases.advance(lease, async (tx) => {
    const step = await whileAlive(node, work(tx))
    await world.turn(`node ${node.id} sends a commit`)
    if (fate === 'late') {
      broken(new Error('the connection broke before the commit was answered'))
      await new Promise<void>((resolve) => world.clock.after(TIMES.lateMs, resolve))
    }
    isHeld = world.holds(lease)
    return step
  })
  const ended = running.then((outcome) => watched(world, isHeld, outcome))
  const outcome = await node.hear('of its commit', Promise.race([ended, breaks]))
  if (fate === 'lost') return NEVER
  if (fate === 'fail_after') throw new Error('the connection broke after the commit')
  return outcome
}

/** When a process crashes, the database rolls back its open transactions. */
async function whileAlive<Given>(node: DurableNode, given: Given | Promise<Given>): Promise<Given> {
  let stopWatching: () => void = () => undefined
  const death = new Promise<never>((_, reject) => {
    stopWatching = node.onCrash(() => reject(new Error('its process has died')))
  })
  try {
    return await Promise.race([given, death])
  } finally {
    stopWatching()
  }
}

function faultyOutbox(node: DurableNode, call: Call): OutboxStore {
  const { world } = node
  const { outbox } = world.durable
  return {
    add: (tx, message) => outbox.add(tx, message),
    claim: (request) =>
      call('claim messages', () =>
        world.alone(async () => {
          const taken = await outbox.claim(request)
          for (const { id, token } of taken) {
            // A repeated claim gets the lease of the first claim, which may be from before a clock
            // jump.
            if (world.takerOf(id) !== token) node.jumpsBefore.set(id, world.forwardJumps)
            world.taken(id, token)
            world.fairness.taken(id, node)
          }
          return taken
        }),
      ),
    settle: (settlements) =>
      call('settle messages', () => world.alone(() => settleMessages(world, settlements))),
    renew: (leases, leaseMs) =>
      call('renew messages', () => world.alone(() => outbox.renew(leases, leaseMs))),
    read: (id) => call('read a message', () => outbox.read(id)),
    list: (query) => call('list messages', () => outbox.list(query)),
    prune: (request) => call('prune', () => outbox.prune(request)),
  }
}

/** Settles, and checks that only the holder of the message changes anything. */
async function settleMessages(
  world: World,
  settlements: readonly MessageSettlement[],
): Promise<boolean[]> {
  const answers: boolean[] = []
  for (const settlement of settlements) {
    const { id, token } = settlement
    const isTaken = world.takerOf(id) === token
    const before = JSON.stringify(await world.store.durable.outbox.read(id))
    const [answer] = await world.durable.outbox.settle([settlement])
    const after = JSON.stringify(await world.store.durable.outbox.read(id))
    if (!isTaken && before !== after) world.violate('a fenced relay has changed its message')
    answers.push(answer === true)
  }
  return answers
}

function faultyOperatorStore(world: World, call: Call): OperatorStore {
  const { operator } = world.durable
  return {
    takeUnknown: (request) => call('take unknown', () => operator.takeUnknown(request)),
    postpone: (target) => call('postpone', () => operator.postpone(target)),
    act: (act, by) => call(act.kind, () => operator.act(act, by)),
    audit: (query) => call('audit', () => operator.audit(query)),
    discarded: (query) => call('discarded', () => operator.discarded(query)),
  }
}
