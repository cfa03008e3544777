/** The work that clients request: three kinds of handlers, with every behaviour. */
import { sleep } from '../../src/core/time/clock.ts'
import { NotExecutedError } from '../../src/core/errors.ts'
import type { WorkResult, RunContext } from '../../src/core/attempt/run-context.ts'
import type { Scope } from '../../src/core/record/identity.ts'
import type { SimNode, SimTransaction } from './node.ts'
import { TIMES, type Run, type World } from './world.ts'

/** The behaviour of a handler in one run. */
export const BEHAVIOURS = [
  /** Has its effect and replies. */
  'ok',
  /** Fails before it has any effect; in a transaction, before the commit. */
  'fails_clean',
  /** Fails, with proof that it had no effect. */
  'not_executed',
  /** Has its effect, announced by a downstream key, then fails. */
  'effect_then_fails',
  /** Makes an outside call whose answer is lost; the effect happened. */
  'lost_call',
  /** Takes longer than its lease, which must be renewed. */
  'slow',
  /** Exceeds its run time, and then has its effect anyway. */
  'overruns',
  /** Refuses with a reply that is not recorded. */
  'refuses',
  /** Has its effect, announced by a downstream key, and then refuses. */
  'acts_then_refuses',
  /** Rolls its transaction back, then acts outside, then fails with another error. */
  'rolls_back_then_acts',
  /** Ends before its transaction (or effect) has ended. */
  'does_not_wait',
] as const

export type Behaviour = (typeof BEHAVIOURS)[number]

/**
 * `plain` has an outside effect and the default `onLapse: 'unknown'`; `rerun` has one that may be
 * repeated; `transaction` writes its row in the store's transaction, and is `rerun` too.
 */
export type Kind = 'plain' | 'rerun' | 'transaction'

const KINDS: readonly Kind[] = ['plain', 'rerun', 'transaction']

const TENANTS = ['acme', 'globex'] as const

/** One key of each kind for each of the two tenants. */
export const KEYS = KINDS.length * TENANTS.length

/** The number of keys of the first tenant. */
export const OWN_KEYS = KINDS.length

export const kindOf = (key: number): Kind => KINDS[key % KINDS.length]!

/** The key as its client sends it. */
export const nameOf = (key: number): string => `k${key % KINDS.length}`

export const scopeOf = (key: number): Scope => ({
  tenant: TENANTS[Math.floor(key / KINDS.length)]!,
  operation: 'pay',
})

export interface Task {
  readonly kind: Kind
  readonly behaviour: Behaviour
}

export async function work(run: Run, context: RunContext, task: Task): Promise<WorkResult> {
  run.work = 'running'
  run.node.world.enter(run, context.recordId, context.attempt)
  try {
    return await workThrough(run, context, task)
  } finally {
    run.work = 'ended'
  }
}

async function workThrough(run: Run, context: RunContext, task: Task): Promise<WorkResult> {
  const { node } = run
  const { kind, behaviour } = task
  await node.turn('enters the handler')
  if (behaviour === 'not_executed') {
    context.downstreamKey()
    throw new NotExecutedError()
  }
  if (behaviour === 'refuses') return { kind: 'release', result: encode('not now') }
  if (behaviour === 'fails_clean' && kind !== 'transaction') throw new Error('card declined')
  if (behaviour === 'slow') await nap(node, TIMES.leaseMs * 2)
  if (behaviour === 'overruns') await nap(node, TIMES.runTimeoutMs + TIMES.leaseMs)
  return kind === 'transaction'
    ? workInTransaction(run, context, behaviour)
    : workOutside(run, context, task)
}

async function workOutside(
  run: Run,
  context: RunContext,
  { kind, behaviour }: Task,
): Promise<WorkResult> {
  const rerun = kind === 'rerun'
  if (behaviour === 'effect_then_fails' || behaviour === 'acts_then_refuses' || rerun) {
    context.downstreamKey()
  }
  const result = rerun ? await actHeld(run, context) : actOnce(run.node.world, context)
  await run.node.turn('has acted')
  if (behaviour === 'effect_then_fails') throw new Error('broke after the effect')
  if (behaviour === 'lost_call') throw new TypeError('fetch failed')
  if (behaviour === 'acts_then_refuses') return { kind: 'release', result: encode('not now') }
  return encode(result)
}

function actOnce(world: World, { recordId, attempt }: RunContext): string {
  const result = world.effect(recordId, attempt)
  if (world.effectsOf(recordId).length > 1) {
    world.violate(`two effects under record ${recordId}, which must not run again`)
  }
  return result
}

/**
 * The effect of work that may be repeated, right after `assertHeld`.
 *
 * A store that counts leases in wall time ends them early when that clock jumps forward, and the
 * holder cannot detect it: its own clock did not jump. So for work that was claimed before such a
 * jump, "one holder acts at a time" is not guaranteed. The other guarantees hold and are checked
 * elsewhere: the fence, one final reply, and one effect if the route is not `rerun`.
 */
async function actHeld(run: Run, context: RunContext): Promise<string> {
  const { world } = run.node
  const { recordId, attempt } = context
  context.assertHeld()
  const result = world.effect(recordId, attempt)
  const jumped = world.forwardJumps > run.jumpsBefore
  const current = await world.currentAttempt(recordId)
  if (current !== attempt && !jumped) {
    world.violate(`attempt ${attempt} acted while attempt ${current} holds the lease`)
  }
  return result
}

async function workInTransaction(
  run: Run,
  context: RunContext,
  behaviour: Behaviour,
): Promise<WorkResult> {
  const committing = commit(run, context, behaviour)
  if (behaviour === 'does_not_wait') {
    committing.catch(() => undefined)
    throw new Error('ended before its transaction')
  }
  if (behaviour === 'rolls_back_then_acts') {
    await committing.catch(() => undefined)
    run.node.world.effect(context.recordId, context.attempt)
    throw new Error('broke after the effect')
  }
  const result = await committing
  await run.node.turn('has committed')
  if (behaviour === 'effect_then_fails') throw new Error('broke after the commit')
  if (behaviour === 'acts_then_refuses') return { kind: 'release', result: encode('not now') }
  return result
}

function commit(run: Run, context: RunContext, behaviour: Behaviour): Promise<Uint8Array> {
  const { node } = run
  const { recordId, attempt } = context
  return context.transaction<SimTransaction>(async (tx) => {
    await node.turn('writes its row')
    const result = node.world.newResult(recordId, attempt)
    tx.insert({ recordId, attempt, result })
    if (behaviour === 'fails_clean') throw new Error('card declined')
    if (behaviour === 'lost_call') throw new TypeError('fetch failed')
    if (behaviour === 'rolls_back_then_acts') throw new Error('the row is not wanted')
    return encode(result)
  })
}

async function nap(node: SimNode, ms: number): Promise<void> {
  await sleep(node.world.clock, ms)
  await node.turn('wakes up')
}

const encode = (result: string): Uint8Array => new TextEncoder().encode(result)
