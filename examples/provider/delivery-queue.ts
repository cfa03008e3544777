import type { DatabaseSync } from 'node:sqlite'
import type { ProviderEffect, ProviderEvent } from './contract.ts'
import { inTransaction, type Database } from './database.ts'
import type { FaultPlan } from './faults.ts'
import { newId } from './ledger.ts'

export interface Delivery {
  readonly number: number
  /** The sequence of its effect. */
  readonly sequence: number
  readonly body: string
  readonly dueMs: number
  /** The number of failed tries. */
  readonly tries: number
}

export interface QueueOptions {
  readonly database: Database
  readonly now: () => number
  readonly faultPlan: FaultPlan
  /** Events are dropped when this many deliveries wait. */
  readonly queueMax: number
  /** The maximum time for which an event without a successor is held back. */
  readonly heldMaxMs: number
}

export interface DeliveryQueue {
  /** Runs in the transaction of the effect, so that no effect is without its events. */
  add(effect: ProviderEffect): void
  /** The next deliveries by time, including those that are not due yet. */
  listNext(limit: number): Delivery[]
  postpone(number: number, dueMs: number): void
  /** Delivered or dropped: makes the deliveries that waited for it due. */
  remove(delivery: Delivery): void
  countPending(): number
  /** The number of events that found the queue full. */
  readonly dropped: number
}

const ADD = `
  INSERT INTO delivery (sequence, body, is_copy, is_held, after_ms, due_ms, tries)
  VALUES (?, ?, ?, ?, ?, ?, 0)`

const NEXT = `
  SELECT number, sequence, body, due_ms AS dueMs, tries FROM delivery
  WHERE due_ms IS NOT NULL ORDER BY due_ms, number LIMIT ?`

/** Releases the second event of an effect, which waits for the first. */
const LET_NEXT_GO = `
  UPDATE delivery SET due_ms = ? + after_ms WHERE due_ms IS NULL AND sequence = ?`

/** Releases events that were held long enough. The second event of an effect must be gone. */
const LET_HELD_GO = `
  UPDATE delivery SET is_held = 0, due_ms = ?
  WHERE is_held = 1 AND due_ms IS NOT NULL AND number < ? AND NOT EXISTS (
    SELECT 1 FROM delivery AS later
    WHERE later.sequence = delivery.sequence AND later.number > delivery.number
      AND later.is_copy = 0)`

/**
 * Deliveries in the database of the ledger. A delivery is removed only after it was made, so a
 * crash in between makes it twice.
 */
export function createDeliveryQueue(options: QueueOptions): DeliveryQueue {
  return new SqliteDeliveryQueue(options)
}

class SqliteDeliveryQueue implements DeliveryQueue {
  dropped = 0
  readonly #options: QueueOptions
  readonly #quick: DatabaseSync
  readonly #statements: ReturnType<typeof prepareAll>

  constructor(options: QueueOptions) {
    this.#options = options
    this.#quick = options.database.quick
    this.#statements = prepareAll(options.database)
  }

  add(effect: ProviderEffect): void {
    const first = this.#addEvent(effect, 'effect.received', 'none')
    this.#addEvent(effect, `effect.${effect.status}`, first)
  }

  /** `before` is the state of the previous event of the effect. Returns the state of this one. */
  #addEvent(effect: ProviderEffect, type: ProviderEvent['type'], before: EventState): EventState {
    const { now, faultPlan, queueMax, heldMaxMs } = this.#options
    const { deliveriesAfterMs, isHeldBack } = faultPlan.ofEvent()
    if (deliveriesAfterMs.length === 0) {
      faultPlan.note('lostWebhook')
      return 'none'
    }
    if (this.countPending() + deliveriesAfterMs.length > queueMax) {
      this.dropped++
      return 'none'
    }
    const createdAt = new Date(now()).toISOString()
    const event: ProviderEvent = { id: newId('ev'), type, createdAt, effect }
    // Only one of the two is held, or they would arrive in order.
    const isHeld = isHeldBack && before !== 'held'
    if (isHeld) faultPlan.note('webhookOutOfOrder')
    if (deliveriesAfterMs.length > 1) faultPlan.note('duplicateWebhook')
    for (const [index, copyAfterMs] of deliveriesAfterMs.entries()) {
      const afterMs = copyAfterMs + (isHeld ? heldMaxMs : 0)
      const dueMs = before === 'queued' ? null : now() + afterMs
      const flags = [Number(index > 0), Number(isHeld)]
      this.#statements.add.run(effect.sequence, JSON.stringify(event), ...flags, afterMs, dueMs)
    }
    return isHeld ? 'held' : 'queued'
  }

  listNext(limit: number): Delivery[] {
    return this.#statements.next.all(limit) as unknown as Delivery[]
  }

  postpone(number: number, dueMs: number): void {
    this.#statements.postpone.run(dueMs, number)
  }

  remove({ number, sequence }: Delivery): void {
    inTransaction(this.#quick, () => {
      const { isCopy } = this.#statements.remove.get(number) as { isCopy: number }
      if (isCopy === 1) return
      this.#statements.letNextGo.run(this.#options.now(), sequence)
      this.#statements.letHeldGo.run(this.#options.now(), number)
    })
  }

  countPending(): number {
    return (this.#statements.count.get() as { count: number }).count
  }
}

/** The state of an event: lost, queued, or held back. */
type EventState = 'none' | 'queued' | 'held'

function prepareAll({ durable, quick }: Database) {
  return {
    add: durable.prepare(ADD),
    count: durable.prepare('SELECT count(*) AS count FROM delivery'),
    next: quick.prepare(NEXT),
    postpone: quick.prepare(
      'UPDATE delivery SET due_ms = ?, tries = tries + 1, is_held = 0 WHERE number = ?',
    ),
    remove: quick.prepare('DELETE FROM delivery WHERE number = ? RETURNING is_copy AS isCopy'),
    letNextGo: quick.prepare(LET_NEXT_GO),
    letHeldGo: quick.prepare(LET_HELD_GO),
  }
}
