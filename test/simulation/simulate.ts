/** One simulated run: executes a plan, heals the world, and checks the invariants. */
import type { Scheduler } from 'fast-check'
import { LEASE_AHEAD_MS } from '../../src/core/record/shorten-lease.ts'
import { identityOf } from '../../src/core/record/identity.ts'
import type { RecordView } from '../../src/core/store/store.ts'
import { runClient, send, type ClientAnswer, type ClientPlan } from './client.ts'
import { SimNode } from './node.ts'
import { isAnyRefusing } from './process.ts'
import { KEYS, kindOf, nameOf, scopeOf } from './work.ts'
import { TIMES, World, flush, textOf, type Fate } from './world.ts'

export type Step =
  | { readonly kind: 'run'; readonly turns: number }
  | { readonly kind: 'advance'; readonly ms: number }
  /** Moves only the wall clock, forward or back. */
  | { readonly kind: 'jump'; readonly ms: number }
  | { readonly kind: 'crash'; readonly node: number }
  | { readonly kind: 'stall'; readonly node: number }
  | { readonly kind: 'resume'; readonly node: number }
  /** `engine.close()`, followed by the end of the process. */
  | { readonly kind: 'close'; readonly node: number }
  /** An operator gives correct verdicts on unknown records, where the outcome is certain. */
  | { readonly kind: 'resolve' }
  /** Every finished record expires. A reaper makes tombstones of them, or has not come to them. */
  | { readonly kind: 'expire'; readonly reaps: boolean }

export interface Plan {
  readonly clients: readonly ClientPlan[]
  readonly steps: readonly Step[]
  readonly fates: readonly Fate[]
}

const NODES = 2
/** A healthy world is at rest well before this many rounds; more is a hang. */
const ROUNDS_MAX = 400
/** The longest timeout of the engine: a sweep that is never answered. */
const SWEEP_TIMEOUT_MS = 60_000
/** After that timeout: one sweep, and the work that it releases. */
const QUIET_MS = SWEEP_TIMEOUT_MS + 4 * TIMES.leaseMs

export async function simulate(scheduler: Scheduler, plan: Plan): Promise<void> {
  const random = Math.random
  // Random numbers of the package must be the same when a history is replayed.
  Math.random = () => 0.5
  try {
    await carryThrough(scheduler, plan)
  } finally {
    Math.random = random
  }
}

async function carryThrough(scheduler: Scheduler, plan: Plan): Promise<void> {
  const world = new World(scheduler, plan.fates)
  for (let id = 0; id < NODES; id++) world.nodes.push(new SimNode(world, id))
  const answers: ClientAnswer[] = []
  const clients = plan.clients.map((client) =>
    runClient(world, client, (answer) => answers.push(answer)),
  )
  const all = trackEnd(Promise.all(clients))

  for (const step of plan.steps) {
    await carryOut(world, scheduler, step)
    check(world)
  }
  for (const node of world.nodes) node.resume()
  // The clients finish while the store is still faulty; then it heals, and the rest completes.
  await comeToRest(world, scheduler, { all, quietMs: 0 })
  world.healed = true
  // The first sweep shortens a lease that is further ahead than this.
  const aheadMs = Math.min(world.backwardMs, LEASE_AHEAD_MS)
  await comeToRest(world, scheduler, { all, quietMs: QUIET_MS + aheadMs })
  check(world)
  await judge(world, answers)
  await judgeEnds(world, answers, scheduler)
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
    case 'resolve':
      return resolveHonestly(world)
    case 'expire':
      world.jump(TIMES.expiryMs)
      if (step.reaps) await world.alone(() => world.store.reap({ limit: 100 }))
      return flush()
  }
}

/** One node must keep running, so that work can finish. */
function mayLose(world: World, id: number): boolean {
  return world.nodes.some((node) => node.id !== id && node.serves)
}

async function runOne(scheduler: Scheduler): Promise<void> {
  if (scheduler.count() > 0) await scheduler.waitNext(1)
  await flush()
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
  { all, quietMs }: { readonly all: { readonly ended: boolean }; readonly quietMs: number },
): Promise<void> {
  let quietForMs = 0
  for (let round = 0; round < ROUNDS_MAX; round++) {
    await flush()
    while (scheduler.count() > 0) await runOne(scheduler)
    const isProbing = world.healed && isAnyRefusing(world.nodes)
    const isOver = all.ended && quietForMs >= quietMs && !isProbing
    if (world.violation !== undefined || isOver) return
    // While clients wait, time moves in small steps; after that a long step is harmless.
    const usualMs = all.ended ? longStepMs(quietForMs) : TIMES.sweepEveryMs / 2
    const stepMs = isProbing ? TIMES.storeTimeoutMs / 8 : usualMs
    world.clock.advance(stepMs)
    if (all.ended) quietForMs += stepMs
  }
  world.violate('the world did not come to rest: work hangs')
}

/** Work without a caller ends within its timeouts; after that nothing happens for a long time. */
function longStepMs(quietForMs: number): number {
  const isSilent = quietForMs >= TIMES.runTimeoutMs * 2 && quietForMs < SWEEP_TIMEOUT_MS
  return isSilent ? SWEEP_TIMEOUT_MS - quietForMs : TIMES.leaseMs
}

function check(world: World): void {
  if (world.violation !== undefined) throw world.violation
}

/** Invariants that must hold when the world is at rest. */
async function judge(world: World, answers: readonly ClientAnswer[]): Promise<void> {
  const stuck = await world.store.list({ state: 'in_progress', limit: 100 })
  if (stuck.length > 0) world.violate(`${stuck.length} records are stuck in progress`)
  const hanging = world.runs.filter(({ node, ended }) => node.alive && !ended)
  if (hanging.length > 0) world.violate(`${hanging.length} requests were never answered`)
  if (world.nodes.some(({ alive, closing }) => alive && closing)) {
    world.violate('close() has not ended')
  }
  judgeRetryable(world, await world.store.list({ state: 'failed_retryable', limit: 100 }))
  judgeAnswers(world, answers)
  check(world)
}

function judgeRetryable(
  world: World,
  records: readonly { readonly recordId: string; readonly key: string }[],
): void {
  for (const { recordId, key } of records) {
    const isPlain = kindOf(Number(key.slice(1))) === 'plain'
    if (isPlain && world.effectsOf(recordId).length > 0) {
      world.violate(`record ${recordId} may be retried although it had an effect`)
    }
  }
}

/** Each key has one final reply, and no success without an effect. */
function judgeAnswers(world: World, answers: readonly ClientAnswer[]): void {
  const finals = new Map<number, string>()
  for (const { key, outcome } of answers) {
    if (outcome.kind !== 'ran' && outcome.kind !== 'replayed') continue
    const result = new TextDecoder().decode(outcome.result)
    const done = kindOf(key) === 'transaction' ? world.rows : world.effects
    if (!done.some((effect) => effect.result === result)) {
      world.violate(`key ${key} was answered with a result that nothing produced`)
    }
    const known = finals.get(key) ?? result
    if (known !== result) world.violate(`key ${key} has two final replies`)
    finals.set(key, known)
  }
}

/** A row exists exactly when its record is completed, and matches the reply. */
function judgeRow(world: World, record: RecordView): void {
  const rows = world.rowsOf(record.recordId).map(({ result }) => result)
  // A tombstone does not say which result it had.
  if (record.state === 'expired' && rows.length <= 1) return
  const expected = record.state === 'completed' ? [textOf(record)] : []
  if (rows.length !== expected.length || rows[0] !== expected[0]) {
    world.violate(`a ${record.state} record has ${rows.length} rows, or those of another reply`)
  }
}

/** An operator resolves all unknown records; after that one more retry must get an answer. */
async function judgeEnds(
  world: World,
  answers: readonly ClientAnswer[],
  scheduler: Scheduler,
): Promise<void> {
  await resolveHonestly(world, true)
  const node = world.nodes.find(({ serves }) => serves)!
  const last: Promise<ClientAnswer | undefined>[] = []
  for (let key = 0; key < KEYS; key++) {
    const record = await recordOf(world, key)
    if (record === undefined) continue
    if (kindOf(key) === 'transaction') judgeRow(world, record)
    const altered = record.fingerprint === 'altered'
    const sent = send(node, key, { behaviour: 'ok', altered, waits: false, finds: false })
    last.push(sent.then((outcome) => outcome && { key, outcome }))
  }
  const all = trackEnd(Promise.all(last))
  await comeToRest(world, scheduler, { all, quietMs: 0 })
  check(world)
  for (const answer of await Promise.all(last)) {
    const kind = answer?.outcome.kind
    if (kind !== 'ran' && kind !== 'replayed' && kind !== 'expired') {
      world.violate(`key ${answer?.key} still answers ${kind} after everything healed`)
    }
    if (answer !== undefined) judgeAnswers(world, [...answers, answer])
  }
}

function recordOf(world: World, key: number): Promise<RecordView | undefined> {
  return world.store.read({ identity: identityOf(scopeOf(key), nameOf(key)) })
}

/** Gives verdicts on unknown records whose outcome is certain and on which no work runs. */
async function resolveHonestly(world: World, atRest = false): Promise<void> {
  for (const { identity, recordId, key } of await listUnknown(world)) {
    // At rest, remaining work waits for a transaction that will never be answered.
    if (!atRest && !world.isOver(identity)) continue
    const isRow = kindOf(Number(key.slice(1))) === 'transaction'
    const effect = (isRow ? world.rowsOf(recordId) : world.effectsOf(recordId)).at(-1)
    const verdict =
      effect === undefined
        ? ({ kind: 'failed_retryable' } as const)
        : ({ kind: 'completed', result: new TextEncoder().encode(effect.result) } as const)
    await world.resolve(identity, { ref: { recordId }, verdict, retentionMs: 86_400_000 })
  }
}

function listUnknown(world: World): Promise<RecordView[]> {
  return world.store.list({ state: 'unknown', limit: 100 })
}
