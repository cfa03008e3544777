/** One simulated run: a plan, carried out, healed, and judged. */
import type { Scheduler } from 'fast-check'
import { identityOf } from '../../src/core/identity.ts'
import { mayRerun, runClient, send, type Answered, type ClientPlan } from './client.ts'
import { TIMES, World, type Fate } from './world.ts'

export type Step =
  | { readonly kind: 'run'; readonly turns: number }
  | { readonly kind: 'advance'; readonly ms: number }
  | { readonly kind: 'crash'; readonly node: number }
  | { readonly kind: 'stall'; readonly node: number }
  | { readonly kind: 'resume'; readonly node: number }

export interface Plan {
  readonly clients: readonly ClientPlan[]
  readonly steps: readonly Step[]
  readonly fates: readonly Fate[]
}

const NODES = 2
/** A healthy world comes to rest well before this many rounds; more is a hang. */
const ROUNDS_MAX = 400
/** Longer than the longest wait of the engine's own: a sweep whose answer never came. */
const QUIET_MS = 70_000

export async function simulate(scheduler: Scheduler, plan: Plan): Promise<void> {
  const world = new World(scheduler, plan.fates, NODES)
  const answers: Answered[] = []
  const clients = plan.clients.map((client) =>
    runClient(world, client, (answer) => answers.push(answer)),
  )
  const all = trackEnd(Promise.all(clients))

  for (const step of plan.steps) {
    await carryOut(world, scheduler, step)
    check(world)
  }
  world.healed = true
  for (const node of world.nodes) node.resume()
  await comeToRest(world, scheduler, all)
  await judge(world, answers, scheduler)
  check(world)
}

async function carryOut(world: World, scheduler: Scheduler, step: Step): Promise<void> {
  switch (step.kind) {
    case 'run':
      for (let turn = 0; turn < step.turns; turn++) await runOne(scheduler)
      return
    case 'advance':
      world.clock.advance(step.ms)
      return flush()
    case 'crash':
      // One node survives: somebody has to tell the tale.
      if (world.nodes.filter(({ alive }) => alive).length > 1) world.nodes[step.node]!.crash()
      return
    case 'stall':
      return world.nodes[step.node]!.stall()
    case 'resume':
      world.nodes[step.node]!.resume()
      return flush()
  }
}

async function runOne(scheduler: Scheduler): Promise<void> {
  if (scheduler.count() > 0) await scheduler.waitNext(1)
  await flush()
}

/** Lets every promise chain run until it waits for the scheduler or the clock. */
function flush(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve)
  })
}

function trackEnd(promise: Promise<unknown>): { ended: boolean } {
  const state = { ended: false }
  void promise.then(() => {
    state.ended = true
  })
  return state
}

async function comeToRest(
  world: World,
  scheduler: Scheduler,
  all: { readonly ended: boolean },
): Promise<void> {
  let quietForMs = 0
  for (let round = 0; round < ROUNDS_MAX; round++) {
    await flush()
    while (scheduler.count() > 0) await runOne(scheduler)
    if (world.violation !== undefined || quietForMs > QUIET_MS) return
    // While clients wait, time goes in small steps; after that nobody minds a long one.
    const stepMs = all.ended ? TIMES.leaseMs * 2 : TIMES.sweepEveryMs / 2
    world.clock.advance(stepMs)
    if (all.ended) quietForMs += stepMs
  }
  world.violate('the world did not come to rest: something hangs')
}

function check(world: World): void {
  if (world.violation !== undefined) throw world.violation
}

/** What must hold when everything has come to rest. */
async function judge(
  world: World,
  answers: readonly Answered[],
  scheduler: Scheduler,
): Promise<void> {
  const stuck = await world.store.list({ state: 'in_progress', limit: 100 })
  if (stuck.length > 0) world.violate(`${stuck.length} records are stuck in progress`)
  judgeRetryable(world, await world.store.list({ state: 'failed_retryable', limit: 100 }))
  judgeAnswers(world, answers)
  check(world)
  const keys = new Set(answers.map(({ key }) => key))
  for (const key of keys) await judgeEnd(world, key, answers, scheduler)
}

function judgeRetryable(
  world: World,
  records: readonly { readonly recordId: string; readonly key: string }[],
): void {
  for (const { recordId, key } of records) {
    if (!mayRerun(Number(key.slice(1))) && world.effectsOf(recordId).length > 0) {
      world.violate(`record ${recordId} may be retried although it had an effect`)
    }
  }
}

/** One final reply per key, and no success without an effect behind it. */
function judgeAnswers(world: World, answers: readonly Answered[]): void {
  const finals = new Map<number, string>()
  for (const { key, outcome } of answers) {
    if (outcome.kind !== 'ran' && outcome.kind !== 'replayed') continue
    const result = new TextDecoder().decode(outcome.result)
    if (!world.effects.some((effect) => effect.result === result)) {
      world.violate(`key ${key} was answered with a result that nothing produced`)
    }
    const known = finals.get(key) ?? result
    if (known !== result) world.violate(`key ${key} has two final replies`)
    finals.set(key, known)
  }
}

/** An honest operator resolves what is unknown; after that one more retry must get an answer. */
async function judgeEnd(
  world: World,
  key: number,
  answers: readonly Answered[],
  scheduler: Scheduler,
): Promise<void> {
  const identity = identityOf({ tenant: 't', operation: 'pay' }, `k${key}`)
  const record = await world.store.read({ identity })
  if (record === undefined) return
  if (record.state === 'unknown') await resolveHonestly(world, record.recordId)

  const altered = record.fingerprint === 'altered'
  const node = world.nodes.findIndex(({ alive }) => alive)
  const last = send(world, key, { node, behaviour: 'ok', altered })
  const state = trackEnd(last)
  await comeToRest(world, scheduler, state)
  check(world)
  const outcome = await last
  if (outcome === undefined || (outcome.kind !== 'ran' && outcome.kind !== 'replayed')) {
    world.violate(`after everything has healed, key ${key} still answers ${outcome?.kind}`)
    return
  }
  judgeAnswers(world, [...answers.filter((answer) => answer.key === key), { key, outcome }])
}

async function resolveHonestly(world: World, recordId: string): Promise<void> {
  const effect = world.effectsOf(recordId).at(-1)
  const verdict =
    effect === undefined
      ? ({ kind: 'failed_retryable' } as const)
      : ({ kind: 'completed', result: new TextEncoder().encode(effect.result) } as const)
  await world.store.resolve([{ ref: { recordId }, verdict, retentionMs: 86_400_000 }])
}
