/**
 * Says what is wrong. Pure: everything it knows is in the facts, so that it can be tried with
 * histories made by hand.
 */
import type { Facts, UnexpectedExit, Violation } from './facts.ts'
import { ENDLESS_TOPIC, HANGING_OPERATION } from '../neighbours/names.ts'
import { judgeAccepted } from './judge-accepted.ts'
import { judgeAnswers } from './judge-answers.ts'
import { judgeBooks, judgeDoubles } from './judge-books.ts'
import { judgeClients } from './judge-clients.ts'

/** When everything has come to rest. */
export function judge(facts: Facts): Violation[] {
  return [
    ...judgeClients(facts.stories),
    ...judgeBooks(facts),
    ...judgeAnswers(facts),
    ...judgeAccepted(facts),
    ...judgeRest(facts),
    ...judgeExits(facts.exits),
  ]
}

/** What is wrong at any time, whatever is still under way. */
export function judgeWhileRunning(
  facts: Pick<Facts, 'stories' | 'effects' | 'exits'> & Pick<Facts['books'], 'entries'>,
): Violation[] {
  return [
    ...judgeClients(facts.stories),
    ...judgeDoubles(facts.effects, facts.entries),
    ...judgeExits(facts.exits),
  ]
}

/** Stuck: what has not ended by now, but for what a bad neighbour hangs in. */
function judgeRest({ records, messages }: Facts): Violation[] {
  const open = records.filter(({ operation, state, recoveryPoint }) => {
    if (operation === HANGING_OPERATION) return false
    if (state === 'failed_retryable') return recoveryPoint !== undefined
    return state === 'in_progress' || state === 'unknown' || state === 'pending'
  })
  const left = messages.filter(
    ({ topic, state }) => topic !== ENDLESS_TOPIC && state !== 'done' && state !== 'dropped',
  )
  return [
    ...open.map(({ recordId, state, recoveryPoint, errorCode, attempt }): Violation => ({
      kind: 'stuck',
      recordId,
      detail:
        `the record is ${state} after attempt ${attempt}, at ${recoveryPoint ?? 'no'} recovery ` +
        `point, error ${errorCode ?? 'none'}`,
    })),
    ...left.map(({ id, topic, state, attempt, errors }): Violation => ({
      kind: 'stuck',
      detail: `message ${id} of ${topic} is ${state} after ${attempt} attempts: ${errors}`,
    })),
  ]
}

function judgeExits(exits: readonly UnexpectedExit[]): Violation[] {
  return exits.map(({ name, how, stderr }) => ({
    kind: 'crashed',
    detail: `${name} ended with ${how}, and nobody had asked it to: ${stderr || 'no word of why'}`,
  }))
}
