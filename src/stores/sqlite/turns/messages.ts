/** Tests: test/stores/sqlite/turns/turns.test.ts. */
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { MessageClaim } from '../../../core/store/durable-store.ts'
import { rotateBehind, type TurnCursors } from '../../kit/turns.ts'
import { DUE_MESSAGES } from '../durable/message-sql.ts'
import { forTable } from '../sql.ts'
import {
  FIRST_MESSAGE_TENANT,
  LONGEST_DUE_MESSAGES,
  MESSAGES_OF_TENANT,
  NEXT_MESSAGE_TENANT,
} from './sql.ts'
import { walkInTurns, type DueKey, type WaitingKey, type WalkResult, type Lane } from './walk.ts'

type Claim = Pick<MessageClaim, 'topics' | 'limit' | 'limits' | 'withoutTenants'>

/** Finds due messages in turns over one connection. For use within a transaction. */
export class MessageTurns {
  readonly #isDue: StatementSync
  readonly #firstTenant: StatementSync
  readonly #nextTenant: StatementSync
  readonly #ofTenant: StatementSync
  readonly #longest: StatementSync

  constructor(db: DatabaseSync, table: string) {
    const prepare = (sql: string) => db.prepare(forTable(table, sql))
    this.#isDue = prepare(DUE_MESSAGES)
    this.#firstTenant = prepare(FIRST_MESSAGE_TENANT)
    this.#nextTenant = prepare(NEXT_MESSAGE_TENANT)
    this.#ofTenant = prepare(MESSAGES_OF_TENANT)
    this.#longest = prepare(LONGEST_DUE_MESSAGES)
  }

  /** Whether a walk finds a message. If tenants are excluded, the answer needs a walk. */
  hasDue(claim: Claim, cursors: TurnCursors, nowMs: number): boolean {
    const { limit, withoutTenants = [] } = claim
    if (limit < 1 || this.#dueTopics(claim, nowMs).length === 0) return false
    if (withoutTenants.length === 0) return true
    const { keys, saveCursors } = this.walk({ ...claim, limit: 1 }, cursors, nowMs)
    if (keys.length === 0) saveCursors()
    return keys.length > 0
  }

  walk(claim: Claim, cursors: TurnCursors, nowMs: number): WalkResult {
    const { limit, withoutTenants } = claim
    const due = this.#dueTopics(claim, nowMs)
    const topics = rotateBehind(due, ({ topic }) => topic, cursors.lastLane)
    return walkInTurns({
      lanes: topics.map(({ topic, max }) => this.#laneOf(topic, max, nowMs)),
      cursors,
      limit,
      nowMs,
      withoutTenants,
      longest: (count) =>
        topics
          .flatMap(({ topic }) => toDue(topic, this.#longest.all(topic, nowMs, count)))
          .toSorted((one, other) => one.due_at_ms - other.due_at_ms || one.number - other.number),
    })
  }

  /** Requested topics with a due message, without duplicates. */
  #dueTopics({ topics, limit, limits }: Claim, nowMs: number) {
    return [...new Set(topics)]
      .map((topic) => ({ topic, max: limits?.[topics.indexOf(topic)] ?? limit }))
      .filter(({ topic, max }) => max > 0 && this.#isDue.get(topic, nowMs, 1) !== undefined)
  }

  #laneOf(topic: string, max: number, nowMs: number): Lane {
    return {
      key: topic,
      max,
      next: (behind) =>
        (behind === undefined
          ? this.#firstTenant.get(topic)
          : this.#nextTenant.get(topic, behind)) as WaitingKey | undefined,
      ofTenant: (tenant, limit) =>
        this.#ofTenant.all(topic, tenant, nowMs, limit) as unknown as WaitingKey[],
    }
  }
}

function toDue(lane: string, rows: readonly unknown[]): DueKey[] {
  return (rows as readonly WaitingKey[]).map((row) => ({ ...row, lane }))
}
