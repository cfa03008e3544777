import type { DatabaseSync, StatementSync } from 'node:sqlite'
import {
  UNRELAYED_TOPICS_MAX,
  type HeldMessage,
  type MessageState,
  type MessageView,
  type NewMessage,
  type UnrelayedQuery,
} from '../../../core/store/durable-store.ts'
import { NO_BYTES } from '../../../core/bytes.ts'
import { readErrors } from '../../kit/messages.ts'
import {
  DELETE_MESSAGE,
  DUE_MESSAGES,
  ENDED_MESSAGES,
  FIND_HEAD,
  FIND_MESSAGE,
  FIND_MESSAGES,
  FIRST_OF_LANE,
  GET_MESSAGE,
  GET_MESSAGES,
  HELD_MESSAGES,
  HOLD_MESSAGE,
  INSERT_MESSAGE,
  LIST_MESSAGES,
  NEXT_TOPIC,
  READ_MESSAGE,
  SET_HEAD,
  UPDATE_MESSAGE,
} from './message-sql.ts'
import { forTable } from '../sql.ts'
import type { SqliteValue } from '../transaction.ts'

/** A row of the message table, for reading and for UPDATE_MESSAGE. */
export interface MessageRow {
  readonly number: number
  readonly id: string
  readonly topic: string
  readonly key: string | null
  readonly partition: string | null
  /** The partition, until later messages of the partition no longer wait for this one. */
  readonly lane: string | null
  readonly is_head: 0 | 1
  readonly state: MessageState
  readonly token: string | null
  readonly attempt: number
  readonly due_at_ms: number | null
  readonly ended_at_ms: number | null
  readonly created_at_ms: number
  readonly provider_id: string | null
  readonly errors: string
  readonly payload: Uint8Array | null
  /** NULL in every statement that omits the payload, except in lists. */
  readonly tenant: string | null
}

/** Statements on messages over one connection. */
export class MessageTable {
  readonly #insert: StatementSync
  readonly #find: StatementSync
  readonly #findAll: StatementSync
  readonly #read: StatementSync
  readonly #get: StatementSync
  readonly #getAll: StatementSync
  readonly #list: StatementSync
  readonly #due: StatementSync
  readonly #nextTopic: StatementSync
  readonly #held: StatementSync
  readonly #hold: StatementSync
  readonly #update: StatementSync
  readonly #head: StatementSync
  readonly #first: StatementSync
  readonly #setHead: StatementSync
  readonly #ended: StatementSync
  readonly #delete: StatementSync

  constructor(db: DatabaseSync, table: string) {
    const prepare = (sql: string) => db.prepare(forTable(table, sql))
    this.#insert = prepare(INSERT_MESSAGE)
    this.#find = prepare(FIND_MESSAGE)
    this.#findAll = prepare(FIND_MESSAGES)
    this.#read = prepare(READ_MESSAGE)
    this.#get = prepare(GET_MESSAGE)
    this.#getAll = prepare(GET_MESSAGES)
    this.#list = prepare(LIST_MESSAGES)
    this.#due = prepare(DUE_MESSAGES)
    this.#nextTopic = prepare(NEXT_TOPIC)
    this.#held = prepare(HELD_MESSAGES)
    this.#hold = prepare(HOLD_MESSAGE)
    this.#update = prepare(UPDATE_MESSAGE)
    this.#head = prepare(FIND_HEAD)
    this.#first = prepare(FIRST_OF_LANE)
    this.#setHead = prepare(SET_HEAD)
    this.#ended = prepare(ENDED_MESSAGES)
    this.#delete = prepare(DELETE_MESSAGE)
  }

  insert(message: NewMessage, nowMs: number): void {
    this.#insert.run(...insertValues(message, nowMs))
  }

  /** Without the payload. */
  find(id: string): MessageRow | undefined {
    return this.#find.get(id) as MessageRow | undefined
  }

  /** Existing messages by id, without their payloads. */
  findAll(ids: readonly string[]): Map<string, MessageRow> {
    const rows = this.#findAll.all(JSON.stringify(ids)) as unknown as MessageRow[]
    return new Map(rows.map((row) => [row.id, row]))
  }

  read(id: string): MessageRow | undefined {
    return this.#read.get(id) as MessageRow | undefined
  }

  get(number: number): MessageRow | undefined {
    return this.#get.get(number) as MessageRow | undefined
  }

  /** In the order of `numbers`, all of which exist. One statement costs less than many. */
  getAll(numbers: readonly number[]): MessageRow[] {
    const rows = this.#getAll.all(JSON.stringify(numbers)) as unknown as MessageRow[]
    const byNumber = new Map(rows.map((row) => [row.number, row]))
    return numbers.map((number) => byNumber.get(number)!)
  }

  list(state: MessageState, limit: number): MessageRow[] {
    return this.#list.all(state, limit) as unknown as MessageRow[]
  }

  /** For each topic that is not in `topics`: the longest due message, if due by `dueByMs`. */
  unrelayed({ topics, limit }: UnrelayedQuery, dueByMs: number): MessageRow[] {
    const unrelayed: MessageRow[] = []
    let topic = ''
    for (let n = 0; n < UNRELAYED_TOPICS_MAX && unrelayed.length < limit; n++) {
      const next = this.#nextTopic.get(topic) as Pick<MessageRow, 'topic'> | undefined
      if (next === undefined) break
      topic = next.topic
      const due = topics.includes(topic) ? undefined : this.#due.get(topic, dueByMs, 1)
      if (due !== undefined) unrelayed.push(this.get((due as Pick<MessageRow, 'number'>).number)!)
    }
    return unrelayed
  }

  /** Messages held under this token whose lease has not lapsed. */
  held(token: string, nowMs: number): MessageRow[] {
    return this.#held.all(token, nowMs) as unknown as MessageRow[]
  }

  hold({ number, token, attempt, due_at_ms }: MessageRow): void {
    this.#hold.run(number, token, attempt, due_at_ms)
  }

  update(row: MessageRow): void {
    this.#update.run(
      row.number,
      row.lane,
      row.is_head,
      row.state,
      row.token,
      row.attempt,
      row.due_at_ms,
      row.ended_at_ms,
      row.provider_id,
      row.errors,
    )
  }

  /** Makes the first message of the lane its head. `row` is the updated row of the last head. */
  passOn({ topic, number, is_head }: MessageRow, lane: string): void {
    const first = this.#first.get(topic, lane) as { number: number } | undefined
    if (first === undefined || first.number === number) return
    if (is_head === 1) this.#setHead.run(number, 0)
    this.#setHead.run(first.number, 1)
  }

  /**
   * Whether a message that returns to its lane becomes the head. An earlier message replaces a
   * later head, unless a relay holds the later one.
   */
  retakeHead({ topic, number }: MessageRow, lane: string): boolean {
    const head = this.#head.get(topic, lane) as Pick<MessageRow, 'number' | 'state'> | undefined
    if (head === undefined) return true
    if (head.state === 'held' || head.number < number) return false
    this.#setHead.run(head.number, 0)
    return true
  }

  /** Numbers of ended messages with at most `bytes` of payload in total; at least one message. */
  ended(beforeMs: number, limits: { readonly rows: number; readonly bytes: number }): number[] {
    const rows = this.#ended.all(beforeMs, limits.rows) as unknown as EndedRow[]
    let bytes = 0
    const end = rows.findIndex((row, n) => (bytes += row.bytes) > limits.bytes && n > 0)
    return rows.slice(0, end === -1 ? rows.length : end).map(({ number }) => number)
  }

  remove(number: number): void {
    this.#delete.run(number)
  }
}

interface EndedRow {
  readonly number: number
  readonly bytes: number
}

/** The parameters of INSERT_MESSAGE. */
export function insertValues(message: NewMessage, nowMs: number): SqliteValue[] {
  const { id, topic, key = null, partition = null, payload, delayMs, tenant = null } = message
  const lane = partition
  return [id, topic, key, partition, lane, topic, lane, nowMs + delayMs, nowMs, payload, tenant]
}

export function toHeld(row: MessageRow): HeldMessage {
  return {
    id: row.id,
    token: row.token ?? '',
    topic: row.topic,
    tenant: row.tenant ?? undefined,
    key: row.key ?? undefined,
    partition: row.partition ?? undefined,
    payload: row.payload ?? NO_BYTES,
    attempt: row.attempt,
    providerId: row.provider_id ?? undefined,
    createdAt: new Date(row.created_at_ms),
  }
}

export function toMessageView(row: MessageRow): MessageView {
  return {
    id: row.id,
    topic: row.topic,
    tenant: row.tenant ?? undefined,
    key: row.key ?? undefined,
    partition: row.partition ?? undefined,
    payload: row.payload ?? undefined,
    state: row.state,
    attempt: row.attempt,
    errors: readErrors(row.errors),
    providerId: row.provider_id ?? undefined,
    createdAt: new Date(row.created_at_ms),
    dueAt: row.due_at_ms === null ? undefined : new Date(row.due_at_ms),
    endedAt: row.ended_at_ms === null ? undefined : new Date(row.ended_at_ms),
  }
}
