/** What operators do with dead messages, within a transaction. */
import { decideMessageAct, type MessageAct } from '../../core/messages.ts'
import type { Acted } from './desk.ts'
import type { Session } from './driver.ts'
import {
  laneOf,
  MESSAGE_HEAD,
  messageChanges,
  toMessage,
  type MessageRow,
} from './message-columns.ts'
import { changeMessagesSql, lockMessagesSql } from './message-sql.ts'
import { ended, ready } from './outbox.ts'
import { headSql, openLaneSql } from './partition-sql.ts'
import type { Inside } from './settlement.ts'
import { isUuid } from './values.ts'

/** Looks until the head of a lane is the one that is locked; each is the next one, and few are. */
const HEAD_TRIES = 10

export async function actOnMessage(
  session: Session,
  inside: Inside,
  act: MessageAct,
): Promise<Acted> {
  const { messageId: id } = act
  if (!isUuid(id)) return { outcome: { kind: 'not_found' }, nowMs: 0 }
  const { row: before, nowMs } = await lockMessage(session, inside, id)
  if (before === undefined) return { outcome: { kind: 'not_found' }, nowMs }
  const { id: subject, state: reason } = before
  const decision = decideMessageAct(before, act)
  switch (decision.kind) {
    case 'already':
      return { outcome: { kind: 'already', subject }, nowMs }
    case 'refused':
      return { outcome: { kind: 'refused', subject, reason }, nowMs }
    case 'done': {
      const isBack = decision.to === 'ready' && before.lane === undefined
      if (isBack && before.partition !== undefined) await stopLane(session, inside, before)
      const after = decision.to === 'ready' ? revived(before, nowMs) : dropped(before, nowMs)
      const columns = messageChanges(before, after)
      const { token, state } = before
      await session.run(changeMessagesSql(inside.tables, [{ id, token, state, columns }]))
      return { outcome: { kind: 'done', subject }, detail: decision.detail, nowMs }
    }
  }
}

async function lockMessage(session: Session, { tables, now }: Inside, id: string) {
  const [row] = await session.rows(lockMessagesSql(tables, now, [id]))
  if (row === undefined) return { row: undefined, nowMs: 0 }
  const [nowMs, ...values] = row
  return { row: toMessage(MESSAGE_HEAD, values), nowMs: Number(nowMs) }
}

/** Its token goes: whoever held it is answered. */
function revived(row: MessageRow, nowMs: number): MessageRow {
  return { ...ready({ ...row, lane: laneOf(row.partition) }, nowMs), token: '' }
}

function dropped(row: MessageRow, nowMs: number): MessageRow {
  return { ...ended(row, nowMs), state: 'dropped', token: '' }
}

/**
 * A message that comes back into its partition may be its head again, while somebody is about to
 * take the one that is the head now: two would be held at once. So until the commit nobody adds to
 * the lane, and nobody takes its head. Whoever has taken it already is found to hold it.
 */
async function stopLane(session: Session, { tables, now }: Inside, row: MessageRow): Promise<void> {
  const { topic, tenant, sequence } = row
  const lane = laneOf(row.partition)
  await session.run(openLaneSql(tables, now, { topic, lane, tenant, sequence }))
  let locked: unknown
  for (let tries = 1; tries <= HEAD_TRIES; tries++) {
    const [head] = await session.rows(headSql(tables, { topic, lane }))
    if (head === undefined || head[0] === locked) return
    locked = head[0]
    await session.rows(lockMessagesSql(tables, now, [String(locked)]))
  }
  throw new Error('the partition moves on too fast: try again')
}
