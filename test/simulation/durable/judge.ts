/** Invariants that must hold when the world is at rest. */
import { downstreamKeyOf, identityOf, idSourceOf } from '../../../src/core/record/identity.ts'
import type { RecordView } from '../../../src/core/store/store.ts'
import { nameOf, scopeOf, type Answer } from './client.ts'
import { HOSTILE } from './hostile.ts'
import { willContinue, messagesIn, recordsIn } from './operator.ts'
import type { Row, World } from './world.ts'

/** The error codes that an `unknown` record without an open effect may have. */
const QUESTIONS: readonly (string | undefined)[] = ['attempts_exhausted', 'lease_lapsed']

export async function judge(world: World): Promise<void> {
  for (const record of await recordsIn(world)) await judgeRecord(world, record)
  for (const { id } of await messagesIn(world, 'done')) {
    if (!world.mailer.delivered.some(({ messageId }) => messageId === id)) {
      world.violate('lost: a message is done and was never delivered')
    }
  }
  judgeOrder(world)
  if (world.nodes.some(({ isClosing }) => isClosing)) world.violate('stuck: close() has not ended')
}

async function judgeRecord(world: World, record: RecordView): Promise<void> {
  const { state, key } = record
  const count = countOf(world, record)
  const what = `key ${key} (${state})`
  for (const [name, number] of Object.entries(count)) {
    if (number > 1) world.violate(`duplicate: ${what} has ${name} ${number} times`)
  }
  if (state === 'completed') {
    if (count.recorded + count.charged + count.booked !== 3) {
      world.violate(`lost: ${what} has ${JSON.stringify(count)}`)
    }
    return
  }
  if (count.booked > 0) world.violate(`divergence: ${what} is booked`)
  if (state === 'in_progress' || willContinue(record)) world.violate(`stuck: ${what}`)
  if (state === 'unknown') await judgeQuestion(world, record)
  else if (count.recorded + count.charged > 0) world.violate(`lost: ${what} was begun`)
}

function countOf({ store, provider, mailer }: World, record: RecordView) {
  const { recordId } = record
  const rows = (what: Row['what']) =>
    store.rows.filter((row) => row.recordId === recordId && row.what === what).length
  const chargeKey = downstreamKeyOf(idSourceOf(record), 'charge')
  const receipts = mailer.delivered.filter((receipt) => receipt.recordId === recordId)
  return {
    recorded: rows('recorded'),
    charged: provider.ledger.filter(({ key }) => key === chargeKey).length,
    booked: rows('booked'),
    mailed: new Set(receipts.map(({ messageId }) => messageId)).size,
  }
}

/** An operator must see what to decide: an effect is open, or the attempts are exhausted. */
async function judgeQuestion(world: World, { recordId, key, errorCode }: RecordView) {
  const operation = await world.store.durable.phases.load(recordId)
  const isOpen = operation?.phases.some(({ state }) => state === 'intended') === true
  if (!isOpen && !QUESTIONS.includes(errorCode)) {
    world.violate(`lost: key ${key} is unknown by ${errorCode}, and it has no open effect`)
  }
}

/** The first receipts of a customer arrive in the order in which the payments were booked. */
function judgeOrder(world: World): void {
  const { store, mailer } = world
  const customers = new Set(store.rows.map(({ customer }) => customer))
  // The flood was never booked.
  customers.delete(HOSTILE)
  for (const customer of customers) {
    const booked = store.rows
      .filter((row) => row.customer === customer && row.what === 'booked')
      .map(({ recordId }) => recordId)
    const mailed = new Set(
      mailer.delivered.filter((one) => one.customer === customer).map(({ recordId }) => recordId),
    )
    const isInOrder = [...mailed].every((recordId, place) => booked[place] === recordId)
    if (!isInOrder) world.violate(`order: ${customer} got receipts out of order`)
  }
}

/** Each key has one final reply, which is the recorded one. */
export function judgeAnswers(world: World, answers: readonly Answer[]): void {
  const finals = new Map<number, string>()
  for (const { key, reply } of answers) {
    const known = finals.get(key) ?? reply
    if (known !== reply) world.violate(`divergence: key ${key} has two final replies`)
    finals.set(key, known)
  }
}

/** After the operator has acted, everything is completed, and every client got the same reply. */
export async function judgeEnd(world: World, answers: readonly Answer[]): Promise<void> {
  judgeAnswers(world, answers)
  for (const { key, reply } of answers) {
    const identity = identityOf(scopeOf(key), nameOf(key))
    const record = await world.store.read({ identity })
    const isSame = record?.result && new TextDecoder().decode(record.result) === reply
    if (isSame !== true) world.violate(`lost: the reply of key ${key} is not on record`)
    const mailed = record && countOf(world, record).mailed
    if (mailed !== 1) world.violate(`lost: key ${key} has ${mailed} receipts`)
  }
  for (const state of ['ready', 'held', 'dead'] as const) {
    const left = await messagesIn(world, state)
    if (left.length > 0) world.violate(`stuck: ${left.length} messages are ${state}`)
  }
}
