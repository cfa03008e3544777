/** The work that clients ask for: three kinds of handlers, in all their moods. */
import { sleep } from '../../src/core/clock.ts'
import { NotExecutedError } from '../../src/core/errors.ts'
import type { WorkEnd } from '../../src/core/execution.ts'
import type { Scope } from '../../src/core/identity.ts'
import type { RunContext } from '../../src/core/run-context.ts'
import type { SimNode, SimTransaction } from './node.ts'
import { TIMES, type Run, type World } from './world.ts'

/** What a handler does this time. */
export const BEHAVIOURS = [
  /** Has its effect and replies. */
  'ok',
  /** Fails before it has done anything; in a transaction: before it commits. */
  'fails_clean',
  /** Fails, with proof that nothing was done. */
  'not_executed',
  /** Has its effect, announced by a downstream key, then fails. */
  'effect_then_fails',
  /** Calls outside; the answer is lost, the effect happened. */
  'lost_call',
  /** Takes longer than its lease, which must be renewed. */
  'slow',
  /** Takes longer than it may, then has its effect all the same. */
  'overruns',
  /** Refuses, without a lasting answer. */
  'refuses',
  /** Has its effect, announced by a downstream key, and refuses after that. */
  'acts_then_refuses',
  /** Its transaction is rolled back; it goes on, acts outside, and fails of something else. */
  'rolls_back_then_acts',
  /** Does not wait for its own transaction (or effect) before it ends. */
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

/** One key of each kind, and the same ones once more, of another tenant. */
export const KEYS = KINDS.length * TENANTS.length

/** Those of the first tenant. */
export const OWN_KEYS = KINDS.length

export const kindOf = (key: number): Kind => KINDS[key % KINDS.length]!

/** What its client calls it. */
export const nameOf = (key: number): string => `k${key % KINDS.length}`

export const scopeOf = (key: number): Scope => ({
  tenant: TENANTS[Math.floor(key / KINDS.length)]!,
  operation: 'pay',
})

export interface Task {
  readonly kind: Kind
  readonly behaviour: Behaviour
}

export async function work(run: Run, context: RunContext, task: Task): Promise<WorkEnd> {
  run.work = 'running'
  run.node.world.enter(run, context.recordId, context.attempt)
  try {
    return await workThrough(run, context, task)
  } finally {
    run.work = 'ended'
  }
}

async function workThrough(run: Run, context: RunContext, task: Task): Promise<WorkEnd> {
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
  if (behaviour === 'overruns') await nap(node, TIMES.maxRunMs + TIMES.leaseMs)
  return kind === 'transaction'
    ? workInTransaction(run, context, behaviour)
    : workOutside(run, context, task)
}

async function workOutside(
  run: Run,
  context: RunContext,
  { kind, behaviour }: Task,
): Promise<WorkEnd> {
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
    world.violate(`two effects under record ${recordId}, which may not be run again`)
  }
  return result
}

/**
 * The effect of work that may be repeated, right after `assertHeld`.
 *
 * A store that counts leases by wall time ends them early when that clock jumps forwards, and no
 * holder can know: its own clock did not jump. So for work that was claimed before such a jump,
 * "one holder acts at a time" is not promised. What is promised still holds, and is checked
 * everywhere else: the fence, one final reply, and one effect where the route is not `rerun`.
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
): Promise<WorkEnd> {
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
