import {
  UNRELAYED_HEADS_MAX,
  UNRELAYED_TOPICS_MAX,
  type UnrelayedQuery,
  type UnrelayedTopic,
} from '../../core/durable-store.ts'
import { readCommitted, type Session } from './driver.ts'
import { lookSql } from './look-sql.ts'
import { NO_PARTITION, toMessage } from './message-columns.ts'
import { nextTopicSql } from './message-sql.ts'
import { isDue, toSeen } from './seen-messages.ts'
import type { Inside } from './settlement.ts'
import { numberLiteral } from './values.ts'

/**
 * From topic to topic, by one look into the index for each: no plan of one statement for all of
 * them is sure to step over the messages in between.
 */
export async function findUnrelayed(
  session: Session,
  { tables, now }: Inside,
  { topics, overdueMs, limit }: UnrelayedQuery,
): Promise<UnrelayedTopic[]> {
  const dueBy = `(${now} - ${numberLiteral('overdueMs', overdueMs)})`
  const found: UnrelayedTopic[] = []
  let topic = ''
  for (let looks = 0; looks < UNRELAYED_TOPICS_MAX && found.length < limit; looks++) {
    const [row] = await readCommitted(session, nextTopicSql(tables, topic))
    if (row === undefined) break
    topic = toMessage(['topic'], row).topic
    if (topics.includes(topic)) continue
    const sql = lookSql(tables, dueBy, {
      // No claim has it.
      token: '',
      freeMax: 1,
      topics: [{ topic, after: NO_PARTITION }],
      lanesMax: UNRELAYED_HEADS_MAX,
      withTenants: false,
      leaps: [],
    })
    const due = (await readCommitted(session, sql))
      .map(toSeen)
      .filter(isDue)
      .toSorted((one, other) => one.dueAtMs - other.dueAtMs)
    const [first] = due
    if (first === undefined) continue
    found.push({ topic, messageId: first.id, dueAt: new Date(first.dueAtMs) })
  }
  return found
}
