/** Clients that retry after every answer. */
import type { RunContext } from '../../src/core/attempt/run-context.ts'
import type { RunOutcome } from '../../src/core/attempt/run-outcome.ts'
import { sleep } from '../../src/core/time/clock.ts'
import { identityOf } from '../../src/core/record/identity.ts'
import type { SimNode } from './node.ts'
import { kindOf, nameOf, scopeOf, work, type Behaviour } from './work.ts'
import { TIMES, retentionOf, textOf, type World } from './world.ts'

/** One request. */
export interface Call {
  readonly behaviour: Behaviour
  /** Sends an altered body under the same key. */
  readonly altered: boolean
  /** Waits for the result if the request is a duplicate. */
  readonly waits: boolean
  /** Only looks the key up, as a guard does for a request that must not run. */
  readonly finds: boolean
}

/** Requests that reach one node at once, with the same or a different body. */
export interface Attempt {
  readonly node: number
  readonly calls: readonly Call[]
}

export interface ClientPlan {
  readonly key: number
  readonly attempts: readonly Attempt[]
}

export interface ClientAnswer {
  readonly key: number
  readonly outcome: RunOutcome
}

/** Sends every attempt of a plan in order, regardless of the answers. */
export async function runClient(
  world: World,
  plan: ClientPlan,
  answered: (answer: ClientAnswer) => void,
): Promise<void> {
  for (const attempt of plan.attempts) {
    await world.turn(`client of key ${plan.key}`)
    const living = world.nodes.filter(({ alive }) => alive)
    const node = living[attempt.node % living.length]!
    const sent = attempt.calls.map(async (call) => {
      const outcome = await send(node, plan.key, call)
      if (outcome !== undefined) answered({ key: plan.key, outcome })
    })
    await Promise.all(sent)
  }
}

/** Sends one request. Returns `undefined` if it failed, or if its node crashed and it timed out. */
export async function send(
  node: SimNode,
  key: number,
  call: Call,
): Promise<RunOutcome | undefined> {
  const { clock } = node.world
  // The client times out; the node continues the request.
  const timedOut = sleep(clock, TIMES.runTimeoutMs * 2).then(() => undefined)
  return Promise.race([request(node, key, call), timedOut])
}

async function request(
  node: SimNode,
  key: number,
  { behaviour, altered, waits, finds }: Call,
): Promise<RunOutcome | undefined> {
  const { world, engine } = node
  const run = world.newRun(node)
  const kind = kindOf(key)
  const policy = engine.policy({
    onLapse: kind === 'plain' ? 'unknown' : 'rerun',
    retentionMs: retentionOf(run),
    afterExpiry: { refuseForMs: TIMES.refuseForMs },
    ...(waits ? { whileInProgress: { waitMs: TIMES.waitMs } } : {}),
  })
  const fingerprint = altered ? 'altered' : 'same'
  const scope = scopeOf(key)
  const wasClosing = node.closing
  const asked: RequestInfo = { key, fingerprint, finds, sentAt: world.states.now }
  try {
    const outcome = await engine.run(
      { scope, key: nameOf(key), fingerprint, policy, findOnly: finds },
      (context) => {
        if (finds) world.violate(`node ${node.id} ran work for a look-up`)
        checkIds(world, key, context)
        if (wasClosing) world.violate(`node ${node.id} took new work after it was closed`)
        return work(run, context, { kind, behaviour })
      },
    )
    await checkOwn(world, outcome, asked)
    // The answer to a holder may describe a settlement that is still in progress.
    if (run.work === 'not_entered') checkFresh(world, outcome, asked)
    await checkRecorded(world, outcome)
    return outcome
  } catch {
    return undefined
  } finally {
    run.ended = true
  }
}

/** The ids of a key are the same on every attempt and every node. */
function checkIds(world: World, key: number, context: RunContext): void {
  const id = context.deterministicId('payment')
  const known = world.ids.get(key) ?? id
  if (known !== id) world.violate(`key ${key} has the ids ${known} and ${id}`)
  world.ids.set(key, known)
}

interface RequestInfo {
  readonly key: number
  readonly finds: boolean
  readonly fingerprint: string
  readonly sentAt: number
}

/** Answers must come from a record of the same tenant, with the fingerprint of the request. */
async function checkOwn(world: World, outcome: RunOutcome, asked: RequestInfo): Promise<void> {
  const { tenant } = scopeOf(asked.key)
  const record = await world.store.read({ recordId: outcome.recordId })
  if (record !== undefined && record.tenant !== tenant) {
    world.violate(`leak: ${tenant} got an answer from a record of ${record.tenant}`)
  }
  // An expired key is refused to every request: fingerprints are not compared.
  if (record?.state === 'expired' || outcome.kind === 'expired') return
  const isOther = record !== undefined && record.fingerprint !== asked.fingerprint
  if (record !== undefined && isOther !== (outcome.kind === 'mismatch')) {
    const { fingerprint } = record
    world.violate(`a request "${asked.fingerprint}" got ${outcome.kind} of "${fingerprint}"`)
  }
}

/** The answer to a duplicate must name a state that the record had after the duplicate was sent. */
function checkFresh(world: World, { kind }: RunOutcome, { key, sentAt, finds }: RequestInfo): void {
  const identity = identityOf(scopeOf(key), nameOf(key))
  const fault = world.states.judge(identity, kind, sentAt)
  // A look-up that meets a lapsed lease answers as the claim that would move it.
  const isLapsed = kind === 'unknown' && finds
  if (isLapsed && world.states.judge(identity, 'in_progress', sentAt) === undefined) return
  if (fault !== undefined) world.violate(fault)
}

/** A returned result must be on record at that moment, byte for byte. */
async function checkRecorded(world: World, outcome: RunOutcome): Promise<void> {
  if (outcome.kind !== 'ran' && outcome.kind !== 'replayed') return
  const record = await world.store.read({ recordId: outcome.recordId })
  if (record?.state === 'expired') return
  if (textOf(record) !== new TextDecoder().decode(outcome.result)) {
    world.violate(`${outcome.kind}: a result was returned that is not on record (${record?.state})`)
  }
}
