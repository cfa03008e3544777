/** Whether any work is left, and an operator who does what only people can do. */
import type { MessageView } from '../../../src/core/store/durable-store.ts'
import type { RecordState } from '../../../src/core/record/record.ts'
import type { RecordView } from '../../../src/core/store/store.ts'
import { encodeValue } from '../../../src/durable/values.ts'
import { isHostile } from './hostile.ts'
import type { World } from './world.ts'

const LISTED_MAX = 10_000
const STATES = ['in_progress', 'completed', 'failed_retryable', 'unknown', 'pending'] as const

/** Excludes the records of the hostile tenant, which never come to rest. */
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

/** `busy`: work is in progress. `waiting`: a worker or the reconciler will act later. */
export async function isAtRest(world: World): Promise<'busy' | 'waiting' | 'quiet'> {
  const records = await recordsIn(world)
  const held = await messagesIn(world, 'held')
  const isBusy = records.some(({ state }) => state === 'in_progress') || held.length > 0
  if (isBusy || world.nodes.some(({ isClosing }) => isClosing)) return 'busy'
  const ready = await messagesIn(world, 'ready')
  const dead = await messagesIn(world, 'dead')
  const isBehind = (one: MessageView) => dead.some(({ partition }) => partition === one.partition)
  const isWaiting = records.some(willContinue) || !ready.every(isBehind)
  return isWaiting ? 'waiting' : 'quiet'
}

/** Whether a worker or the reconciler will continue the record without an operator. */
export function willContinue({ state, recoveryPoint, reconcileAt }: RecordView): boolean {
  if (state === 'unknown') return reconcileAt !== undefined
  return state === 'pending' || (state === 'failed_retryable' && recoveryPoint !== undefined)
}

const BY = { who: 'operator', why: 'has looked into the ledger' } as const

/**
 * Gives verdicts on everything that is left, with full knowledge of the ledgers. Returns the
 * number of verdicts.
 */
export async function actHonestly(world: World): Promise<number> {
  const { operator, phases } = world.store.durable
  const unknown = await recordsIn(world, ['unknown'])
  for (const { recordId } of unknown) {
    const operation = await phases.load(recordId)
    const phase = operation?.phases.find(({ state }) => state === 'intended')
    if (phase === undefined) {
      await operator.act({ kind: 'release', ref: { recordId } }, BY)
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
    await operator.act({ kind: 'conclude', phase: { recordId }, finding }, BY)
  }
  const dead = await messagesIn(world, 'dead')
  for (const { id: messageId } of dead) {
    await operator.act({ kind: 'retry_message', messageId }, BY)
  }
  return unknown.length + dead.length
}
