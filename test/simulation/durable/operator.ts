/** Whether anything is left to be done, and somebody who does what only people can. */
import type { MessageView } from '../../../src/core/durable-store.ts'
import type { RecordState } from '../../../src/core/record.ts'
import type { RecordView } from '../../../src/core/store.ts'
import { encodeValue } from '../../../src/durable/values.ts'
import { isHostile } from './hostile.ts'
import type { World } from './world.ts'

const LISTED_MAX = 10_000
const STATES = ['in_progress', 'completed', 'failed_retryable', 'unknown', 'pending'] as const

/** Those of the hostile tenant are left out: they never come to rest. */
export async function recordsIn(
  world: World,
  states: readonly RecordState[] = STATES,
): Promise<RecordView[]> {
  const lists = states.map((state) => world.store.list({ state, limit: LISTED_MAX }))
  return (await Promise.all(lists)).flat().filter((record) => !isHostile(record))
}

export async function messagesIn(
  world: World,
  state: MessageView['state'],
): Promise<MessageView[]> {
  const messages = await world.store.durable.outbox.list({ state, limit: LISTED_MAX })
  return messages.filter((message) => !isHostile(message))
}

/** `busy`: somebody holds something. `waiting`: somebody will look into something later. */
export async function isAtRest(world: World): Promise<'busy' | 'waiting' | 'quiet'> {
  const records = await recordsIn(world)
  const held = await messagesIn(world, 'held')
  const isBusy = records.some(({ state }) => state === 'in_progress') || held.length > 0
  if (isBusy || world.nodes.some(({ leaving }) => leaving)) return 'busy'
  const ready = await messagesIn(world, 'ready')
  const dead = await messagesIn(world, 'dead')
  const isBehind = (one: MessageView) => dead.some(({ partition }) => partition === one.partition)
  const isWaiting = records.some(isLookedAt) || !ready.every(isBehind)
  return isWaiting ? 'waiting' : 'quiet'
}

/** Somebody will go on with it without being asked. */
export function isLookedAt({ state, recoveryPoint, reconcileAt }: RecordView): boolean {
  if (state === 'unknown') return reconcileAt !== undefined
  return state === 'pending' || (state === 'failed_retryable' && recoveryPoint !== undefined)
}

const BY = { who: 'operator', why: 'has looked into the ledger' } as const

/**
 * Verdicts on what everybody else has given up, by somebody who knows the whole truth. Returns how
 * many there were.
 */
export async function actHonestly(world: World): Promise<number> {
  const { desk, phases } = world.store.durable
  const unknown = await recordsIn(world, ['unknown'])
  for (const { recordId } of unknown) {
    const operation = await phases.load(recordId)
    const phase = operation?.phases.find(({ state }) => state === 'intended')
    if (phase === undefined) {
      await desk.act({ kind: 'release', ref: { recordId } }, BY)
      continue
    }
    const charge = world.provider.find(phase.downstreamKey!)
    const finding =
      charge === undefined
        ? ({ kind: 'not_executed' } as const)
        : ({
            kind: 'done',
            result: encodeValue('a charge', charge),
            providerId: charge.id,
          } as const)
    await desk.act({ kind: 'conclude', phase: { recordId }, finding }, BY)
  }
  const dead = await messagesIn(world, 'dead')
  for (const { id: messageId } of dead) {
    await desk.act({ kind: 'retry_message', messageId }, BY)
  }
  return unknown.length + dead.length
}
