/**
 * Finds the violations of a run. Pure: it depends on the facts only, so that tests can pass facts
 * made by hand.
 */
import type { Facts, UnexpectedExit, Violation } from './facts.ts'
import { ENDLESS_TOPIC, HANGING_OPERATION } from '../neighbours/names.ts'
import { judgeAnswers } from './judge-answers.ts'
import { judgeBooks, judgeDoubles } from './judge-books.ts'
import { judgeClients } from './judge-clients.ts'

/** All violations, when everything is at rest. */
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

/** Violations that are certain at any time, also while work is in progress. */
export function judgeWhileRunning(
  facts: Pick<Facts, 'stories' | 'effects' | 'exits'> & Pick<Facts['books'], 'entries'>,
): Violation[] {
  return [
    ...judgeClients(facts.stories),
    ...judgeDoubles(facts.effects, facts.entries),
    ...judgeExits(facts.exits),
  ]
}

/** Stuck: work that has not ended, except that in which a bad neighbour hangs. */
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
    detail: `${name} ended unexpectedly with ${how}: ${stderr || 'no error output'}`,
  }))
}

/** Lost: work of the flood was accepted and not done. Late work is not a violation here. */
function judgeAccepted({ accepted, records, books }: Facts): Violation[] {
  const byKey = new Map(records.map((record) => [`${record.tenant} ${record.key}`, record]))
  const paid = new Set(
    books.transfers.filter(({ status }) => status === 'paid').map(({ recordId }) => recordId),
  )
  return accepted.flatMap(({ tenant, key }): Violation[] => {
    const record = byKey.get(`${tenant} ${key}`)
    if (record === undefined) {
      return [{ kind: 'lost', detail: `${key} was accepted and has no record` }]
    }
    // Work that has not ended is stuck, which `judgeRest` reports.
    if (record.state !== 'completed' || paid.has(record.recordId)) return []
    const detail = `${key} was accepted and completed, but not paid`
    return [{ kind: 'lost', recordId: record.recordId, detail }]
  })
}
