/** How long work waited, from the database by its own clock, and from the logs of the workers. */
import type { Database, ReadRows, Row } from '../system/database.ts'
import type { Story } from '../clients/story.ts'
import type { Look } from '../system/looks.ts'
import type { RecordRow, Wait, WaitKind } from './facts.ts'

/** Accepted work of one operation, from its first request to its first phase. */
const ACCEPTED = `
  SELECT r.tenant AS tenant, r.{key} AS request_key, r.{created_at} AS from_at,
    p.{first_sent_at} AS until_at
  FROM oncekey_record r
    JOIN oncekey_record_operation o ON o.record_id = r.record_id
    JOIN oncekey_record_phase p ON p.record_id = r.record_id
  WHERE o.name = 'transfers.create' AND p.name = 'record'`

/** Messages, from the transaction that added them to their end. */
const MESSAGES = `
  SELECT p.tenant AS tenant, m.{key} AS request_key, m.{created_at} AS from_at,
    m.{ended_at} AS until_at
  FROM oncekey_record_message m JOIN payment p ON p.payment_id = m.{key}
  WHERE m.topic = 'receipt.send' AND m.state = 'done'`

const QUERIES = [
  ['accepted work', ACCEPTED],
  ['messages', MESSAGES],
] as const

export async function readWaits({ url }: Database, rows: ReadRows): Promise<Wait[]> {
  const waits: Wait[] = []
  for (const [kind, sql] of QUERIES) {
    for (const row of await rows(columnsOf(sql, url))) waits.push(toWait(kind, row))
  }
  return waits
}

/** Times are numbers of milliseconds, except in PostgreSQL. */
function columnsOf(sql: string, url: string): string {
  const suffix = url.startsWith('postgres') ? '' : '_ms'
  const key = url.startsWith('mysql') ? '`key`' : 'key'
  return sql.replaceAll('{key}', key).replaceAll(/\{(\w+)\}/g, `$1${suffix}`)
}

function toWait(kind: WaitKind, row: Row): Wait {
  const { tenant, request_key: key, from_at: from, until_at: until } = row
  return { kind, tenant: text(tenant), key: text(key), fromMs: toMs(from), untilMs: toMs(until) }
}

/** Drivers return binary columns as bytes. */
function text(value: unknown): string {
  return value instanceof Uint8Array ? Buffer.from(value).toString() : String(value)
}

function toMs(time: unknown): number {
  return time instanceof Date ? time.getTime() : Number(time)
}

/**
 * Accepted work waits from the time of the 202. If the work had already started then, it waits from
 * the client's last request before the start. A client may leave before its work is accepted and
 * return much later, which no worker can influence. `startedMs` is the time of the first story.
 */
export function sinceAccepted(
  waits: readonly Wait[],
  stories: readonly Story[],
  startedMs: number,
): Wait[] {
  const byKey = new Map(stories.map((story) => [`${story.tenant} ${story.key}`, story]))
  return waits.map((wait) => {
    const story = wait.kind === 'accepted work' && byKey.get(`${wait.tenant} ${wait.key}`)
    if (!story) return wait
    const own = story.seen.filter(({ asked }) => asked === 'request' || asked === 'status')
    const accepted = own
      .filter(({ outcome }) => outcome.kind === 'answer' && outcome.status === 202)
      .map(({ endedMs }) => startedMs + endedMs)
    const sent = own.map(({ sentMs }) => startedMs + sentMs)
    const before = (times: readonly number[]) => times.filter((ms) => ms <= wait.untilMs)
    const fromMs = before(accepted).length > 0 ? Math.min(...accepted) : Math.max(...before(sent))
    return { ...wait, fromMs: Number.isFinite(fromMs) ? fromMs : wait.untilMs }
  })
}

/** From the sending of an effect to the first query about its outcome. */
export function waitsOfLooks(looks: readonly Look[], records: readonly RecordRow[]): Wait[] {
  const tenants = new Map(records.map(({ recordId, tenant }) => [recordId, tenant]))
  return looks.map(({ recordId, sentMs, lookedMs }) => ({
    kind: 'unknown outcomes',
    tenant: tenants.get(recordId) ?? '',
    fromMs: sentMs,
    untilMs: lookedMs,
  }))
}
