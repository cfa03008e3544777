/** Clients that retry, and the work they ask for. */
import { NotExecutedError } from '../../src/core/errors.ts'
import type { RunOutcome } from '../../src/core/execution.ts'
import type { RunContext } from '../../src/core/run-context.ts'
import { sleep } from '../../src/core/clock.ts'
import { TIMES, type SimNode, type World } from './world.ts'

/** What a handler does this time. */
export type Behaviour =
  /** Has its effect and replies. */
  | 'ok'
  /** Fails before it has done anything. */
  | 'fails_clean'
  /** Fails, with proof that nothing was done. */
  | 'not_executed'
  /** Has its effect, announced by a downstream key, then fails. */
  | 'effect_then_fails'
  /** Calls outside; the answer is lost, the effect happened. */
  | 'lost_call'
  /** Takes longer than its lease, which must be renewed. */
  | 'slow'
  /** Takes longer than it may, then has its effect all the same. */
  | 'overruns'

export interface Attempt {
  readonly node: number
  readonly behaviour: Behaviour
  /** An altered body under the same key. */
  readonly altered: boolean
}

export interface ClientPlan {
  readonly key: number
  readonly attempts: readonly Attempt[]
}

/** Even keys have the default `onLapse: 'unknown'`, odd ones may be run again. */
export const mayRerun = (key: number): boolean => key % 2 === 1

export interface Answered {
  readonly key: number
  readonly outcome: RunOutcome
}

/** Sends every attempt of a plan, one after the other, whatever comes back. */
export async function runClient(
  world: World,
  plan: ClientPlan,
  answered: (answer: Answered) => void,
): Promise<void> {
  for (const attempt of plan.attempts) {
    await world.turn(`client of key ${plan.key}`)
    const outcome = await send(world, plan.key, attempt)
    if (outcome !== undefined) answered({ key: plan.key, outcome })
  }
}

/** One request; `undefined` when it failed, or when its node died and it was given up. */
export async function send(
  world: World,
  key: number,
  { node: nodeId, behaviour, altered }: Attempt,
): Promise<RunOutcome | undefined> {
  const living = world.nodes.filter(({ alive }) => alive)
  const node = living[nodeId % living.length]!
  const rerun = mayRerun(key)
  const policy = node.engine.policy({ onLapse: rerun ? 'rerun' : 'unknown' })
  const request = {
    scope: { tenant: 't', operation: 'pay' },
    key: `k${key}`,
    fingerprint: altered ? 'altered' : 'same',
    policy,
  }
  const run = node.engine
    .run(request, (context) => work(node, context, { behaviour, rerun }))
    .catch(() => undefined)
  // A client does not wait for ever; the request it leaves behind goes on.
  const givenUp = sleep(world.clock, TIMES.maxRunMs * 2).then(() => undefined)
  return Promise.race([run, givenUp])
}

async function work(
  node: SimNode,
  context: RunContext,
  { behaviour, rerun }: { readonly behaviour: Behaviour; readonly rerun: boolean },
): Promise<Uint8Array> {
  const { world } = node
  await node.turn('enters the handler')
  if (behaviour === 'fails_clean') throw new Error('card declined')
  if (behaviour === 'not_executed') {
    context.downstreamKey()
    throw new NotExecutedError()
  }
  if (behaviour === 'slow') await nap(world, node, TIMES.leaseMs * 2)
  if (behaviour === 'overruns') await nap(world, node, TIMES.maxRunMs + TIMES.leaseMs)

  const announced = behaviour === 'effect_then_fails' || rerun
  if (announced) context.downstreamKey()
  const result = await actOutside(world, rerun, context)
  await node.turn('has acted')
  if (behaviour === 'effect_then_fails') throw new Error('broke after the effect')
  if (behaviour === 'lost_call') throw new TypeError('fetch failed')
  return new TextEncoder().encode(result)
}

/** The effect itself, right after `assertHeld` where another attempt could be running. */
async function actOutside(world: World, rerun: boolean, context: RunContext): Promise<string> {
  const { recordId, attempt } = context
  if (rerun) context.assertHeld()
  const result = world.effect(recordId, attempt)
  if (!rerun && world.effectsOf(recordId).length > 1) {
    world.violate(`two effects under record ${recordId}, which may not be run again`)
  }
  const current = await world.currentAttempt(recordId)
  if (rerun && current !== attempt) {
    world.violate(`attempt ${attempt} acted while attempt ${current} holds the lease`)
  }
  return result
}

async function nap(world: World, node: SimNode, ms: number): Promise<void> {
  await sleep(world.clock, ms)
  await node.turn('wakes up')
}
