/** Clients that retry after every answer. */
import { sleep } from '../../../src/core/time/clock.ts'
import { operationPolicy } from '../../../src/durable/operations/worker-options.ts'
import type { DurableNode } from './node.ts'
import { EFFECT_KINDS, type EffectKind, type Payment } from './payment.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

export interface Attempt {
  readonly node: number
  /** Asks for a 202: a worker does the work. */
  readonly accepts: boolean
  /** Waits for the result if the request is a duplicate. */
  readonly waits: boolean
}

export interface ClientPlan {
  readonly key: number
  readonly attempts: readonly Attempt[]
}

/** A final answer that a client got. */
export interface Answer {
  readonly key: number
  readonly reply: string
}

/** Two keys for each kind of effect. */
export const KEYS = EFFECT_KINDS.length * 2

export const kindOf = (key: number): EffectKind => EFFECT_KINDS[key % EFFECT_KINDS.length]!

/** Two customers, who have payments of every kind. Each is the only customer of its tenant. */
export const customerOf = (nth: number): string => `c${nth % 3 === 0 ? 0 : 1}`

export const tenantOf = (customer: string): string => `tenant of ${customer}`

export const inputOf = (key: number): Payment => ({ customer: customerOf(key) })

export const scopeOf = (key: number) => ({
  tenant: tenantOf(customerOf(key)),
  operation: `pay.${kindOf(key)}`,
})

export const nameOf = (key: number): string => `k${key}`

/** Sends every attempt of a plan in order, regardless of the answers. */
export async function runClient(
  world: World,
  plan: ClientPlan,
  answered: (answer: Answer) => void,
): Promise<void> {
  for (const attempt of plan.attempts) {
    await world.turn(`client of key ${plan.key}`)
    const living = world.nodes.filter(({ alive }) => alive)
    const node = living[attempt.node % living.length]!
    const reply = await send(node, plan.key, attempt)
    if (reply !== undefined) answered({ key: plan.key, reply })
  }
}

/** Sends one request. Returns its final reply, if it got one. */
export function send(
  node: DurableNode,
  key: number,
  attempt: Omit<Attempt, 'node'>,
): Promise<string | undefined> {
  const { clock } = node.world
  // The client times out; the node continues the request.
  const timedOut = sleep(clock, TIMES.runTimeoutMs * 2).then(() => undefined)
  return Promise.race([request(node, key, attempt), timedOut])
}

async function request(
  node: DurableNode,
  key: number,
  { accepts, waits }: Omit<Attempt, 'node'>,
): Promise<string | undefined> {
  const { engine } = node
  const waiting = waits ? { whileInProgress: { waitMs: TIMES.waitMs } } : {}
  const policy = operationPolicy(engine, waiting)
  const operation = node.operationOf(kindOf(key))
  const input = inputOf(key)
  const asked = { scope: scopeOf(key), key: nameOf(key), fingerprint: 'same', policy }
  try {
    const outcome = await engine.run(asked, async (context) => {
      if (!accepts) return operation.work(input)(context)
      await operation.accept(context, input)
      return new Uint8Array()
    })
    if (outcome.kind !== 'ran' && outcome.kind !== 'replayed') return undefined
    return new TextDecoder().decode(outcome.result)
  } catch {
    return undefined
  }
}
