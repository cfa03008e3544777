/** Clients that retry, whatever comes back. */
import type { RunOutcome } from '../../src/core/execution.ts'
import { sleep } from '../../src/core/clock.ts'
import { identityOf } from '../../src/core/identity.ts'
import type { SimNode } from './node.ts'
import { kindOf, nameOf, scopeOf, work, type Behaviour } from './work.ts'
import { TIMES, retentionOf, textOf, type World } from './world.ts'

/** One request. */
export interface Call {
  readonly behaviour: Behaviour
  /** An altered body under the same key. */
  readonly altered: boolean
  /** As a duplicate, it waits for the result. */
  readonly waits: boolean
}

/** Requests that reach one node at once, with the same body or with another one. */
export interface Attempt {
  readonly node: number
  readonly calls: readonly Call[]
}

export interface ClientPlan {
  readonly key: number
  readonly attempts: readonly Attempt[]
}

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
    const living = world.nodes.filter(({ alive }) => alive)
    const node = living[attempt.node % living.length]!
    const sent = attempt.calls.map(async (call) => {
      const outcome = await send(node, plan.key, call)
      if (outcome !== undefined) answered({ key: plan.key, outcome })
    })
    await Promise.all(sent)
  }
}

/** One request; `undefined` when it failed, or when its node died and it was given up. */
export async function send(
  node: SimNode,
  key: number,
  call: Call,
): Promise<RunOutcome | undefined> {
  const { clock } = node.world
  // A client does not wait for ever; the request it leaves behind goes on.
  const givenUp = sleep(clock, TIMES.maxRunMs * 2).then(() => undefined)
  return Promise.race([request(node, key, call), givenUp])
}

async function request(
  node: SimNode,
  key: number,
  { behaviour, altered, waits }: Call,
): Promise<RunOutcome | undefined> {
  const { world, engine } = node
  const run = world.newRun(node)
  const kind = kindOf(key)
  const policy = engine.policy({
    onLapse: kind === 'plain' ? 'unknown' : 'rerun',
    retentionMs: retentionOf(run),
    ...(waits ? { whileInProgress: { waitMs: TIMES.waitMs } } : {}),
  })
  const fingerprint = altered ? 'altered' : 'same'
  const scope = scopeOf(key)
  const wasClosing = node.closing
  const asked: Asked = { key, fingerprint, sentAt: world.states.now }
  try {
    const outcome = await engine.run(
      { scope, key: nameOf(key), fingerprint, policy },
      (context) => {
        if (wasClosing) world.violate(`node ${node.id} took new work after it was closed`)
        return work(run, context, { kind, behaviour })
      },
    )
    await checkOwn(world, outcome, asked)
    // What a holder is told may be of a settlement that is still under way.
    if (run.work === 'not_entered') checkFresh(world, outcome, asked)
    await checkRecorded(world, outcome)
    return outcome
  } catch {
    return undefined
  } finally {
    run.ended = true
  }
}

interface Asked {
  readonly key: number
  readonly fingerprint: string
  readonly sentAt: number
}

/** A tenant is told of a record of its own, and a request of one with its own fingerprint. */
async function checkOwn(world: World, outcome: RunOutcome, asked: Asked): Promise<void> {
  const { tenant } = scopeOf(asked.key)
  const record = await world.store.read({ recordId: outcome.recordId })
  if (record !== undefined && record.tenant !== tenant) {
    world.violate(`leak: ${tenant} was answered from a record of ${record.tenant}`)
  }
  const isOther = record !== undefined && record.fingerprint !== asked.fingerprint
  if (record !== undefined && isOther !== (outcome.kind === 'mismatch')) {
    const { fingerprint } = record
    world.violate(`a request "${asked.fingerprint}" was told ${outcome.kind} of "${fingerprint}"`)
  }
}

/** A duplicate is told of a state that the record has had since the duplicate was sent. */
function checkFresh(world: World, { kind }: RunOutcome, { key, sentAt }: Asked): void {
  const identity = identityOf(scopeOf(key), nameOf(key))
  const fault = world.states.judge(identity, kind, sentAt)
  if (fault !== undefined) world.violate(fault)
}

/** A result that anybody is told is on record at that moment, byte for byte. */
async function checkRecorded(world: World, outcome: RunOutcome): Promise<void> {
  if (outcome.kind !== 'ran' && outcome.kind !== 'replayed') return
  const record = await world.store.read({ recordId: outcome.recordId })
  if (textOf(record) !== new TextDecoder().decode(outcome.result)) {
    world.violate(`${outcome.kind}: a result was told that is not on record (${record?.state})`)
  }
}
