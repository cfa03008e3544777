import type {
  HeldMessage,
  MessageClaim,
  MessageLease,
  MessageSettlement,
  NewMessage,
  OutboxStore,
  UnrelayedQuery,
  UnrelayedTopic,
} from '../../../core/store/durable-store.ts'
import { toErrorText } from '../../kit/messages.ts'
import { inRounds } from '../../kit/rounds.ts'
import { joinOwnTransaction, joinTransaction } from '../caller-transaction.ts'
import type { Calls } from '../calls.ts'
import type { Row, Value } from '../driver/driver.ts'
import {
  bytesLiteral,
  isUuid,
  numberArray,
  numberLiteral,
  textArray,
  textLiteral,
  textValue,
} from '../driver/values.ts'
import { isUniqueViolation } from '../failures.ts'
import { SEALED } from '../functions/parts.ts'
import type { Transactions } from '../transaction.ts'
import { MessageTurns } from '../turns/messages.ts'
import { CLAIM_MESSAGES } from '../turns/sql.ts'
import type { Watcher } from '../watcher.ts'
import { toMessageClaimRows, toMessageView } from './message-columns.ts'
import {
  ADD,
  LIST_MESSAGES,
  PRUNE_MESSAGES,
  READ_MESSAGE,
  RENEW_MESSAGES,
  SETTLE_MESSAGES,
  UNRELAYED_MESSAGES,
} from './message-sql.ts'

/**
 * How long the database announces messages after a relay found none. A live relay claims again
 * before that time ends. After a crash of the relay, commits cost a little more for that time.
 */
const WAIT_MS = 60_000

/** Two relays took the same partition at once, and the second must claim again. */
const CLAIM_TRIES_MAX = 3

export interface OutboxContext {
  readonly calls: Calls
  readonly watcher: Watcher | undefined
  readonly transactions: Transactions
}

export function outboxStore(context: OutboxContext): OutboxStore {
  return new MessageStore(context)
}

/** A call about a list of messages. */
interface MessageCall<Item> {
  readonly operation: string
  readonly sql: string
  readonly values: (known: readonly Item[]) => Value[]
}

class MessageStore implements OutboxStore {
  readonly #calls: Calls
  readonly #watcher: Watcher | undefined
  readonly #transactions: Transactions
  readonly #turns = new MessageTurns()
  readonly watch?: NonNullable<OutboxStore['watch']>

  constructor({ calls, watcher, transactions }: OutboxContext) {
    this.#calls = calls
    this.#watcher = watcher
    this.#transactions = transactions
    if (watcher !== undefined) this.watch = (wake) => watcher.watchMessages(wake)
  }

  async add(tx: unknown, message: NewMessage): Promise<void> {
    this.#calls.checkOpen('add a message')
    const joining = {
      caller: 'outbox.add',
      operation: 'add a message',
      mark: message.id,
      call: () => {
        const values = addLiterals(this.#calls.nowMs, message)
        return this.#calls.textOf(ADD).replace('{values}', () => values)
      },
    }
    if (this.#transactions.isOwn(tx)) await joinOwnTransaction(tx, SEALED, joining)
    else await joinTransaction(tx, joining)
  }

  async claim(request: MessageClaim, signal?: AbortSignal): Promise<HeldMessage[]> {
    if (request.topics.length === 0) return []
    const rows = await this.#claim(request, signal)
    const { held, stops, isWaiting } = toMessageClaimRows(rows, request.token)
    for (const stop of stops) this.#turns.stop(request, stop)
    // Messages that were committed between the claim and the note were not announced.
    if (isWaiting) this.#watcher?.wakeForMessages()
    return held
  }

  settle(settlements: readonly MessageSettlement[], signal?: AbortSignal): Promise<boolean[]> {
    const values = (known: readonly MessageSettlement[]) => [
      this.#calls.nowMs,
      ...settleValues(known),
    ]
    return inRounds(settlements, idOf, (round) =>
      this.#sendFor({ operation: 'settle messages', sql: SETTLE_MESSAGES, values }, round, signal),
    )
  }

  renew(
    leases: readonly MessageLease[],
    leaseMs: number,
    signal?: AbortSignal,
  ): Promise<boolean[]> {
    const values = (known: readonly MessageLease[]) => [
      this.#calls.nowMs,
      textArray(known.map(idOf)),
      textArray(known.map(({ token }) => token)),
      leaseMs,
    ]
    return inRounds(leases, idOf, (round) =>
      this.#sendFor({ operation: 'renew messages', sql: RENEW_MESSAGES, values }, round, signal),
    )
  }

  async read(id: string, signal?: AbortSignal) {
    if (!isUuid(id)) return undefined
    const [row] = await this.#calls.send('read a message', READ_MESSAGE, () => [id], signal)
    return row && toMessageView(row)
  }

  async list({ state, limit }: Parameters<OutboxStore['list']>[0], signal?: AbortSignal) {
    const values = () => [state, limit]
    return (await this.#calls.send('list messages', LIST_MESSAGES, values, signal)).map(
      toMessageView,
    )
  }

  async unrelayed(
    { topics, overdueMs, limit }: UnrelayedQuery,
    signal?: AbortSignal,
  ): Promise<UnrelayedTopic[]> {
    const values = () => [this.#calls.nowMs, textArray(topics), overdueMs, limit]
    const operation = 'find unrelayed messages'
    const rows = await this.#calls.send(operation, UNRELAYED_MESSAGES, values, signal)
    return rows.map(([topic, messageId, dueAtMs]) => {
      return {
        topic: topic as string,
        messageId: messageId as string,
        dueAt: new Date(dueAtMs as number),
      }
    })
  }

  async prune(
    { limit, olderThanMs }: Parameters<OutboxStore['prune']>[0],
    signal?: AbortSignal,
  ): Promise<number> {
    const values = () => [this.#calls.nowMs, limit, olderThanMs]
    const [row] = await this.#calls.send('prune messages', PRUNE_MESSAGES, values, signal)
    return row?.[0] as number
  }

  async #claim(request: MessageClaim, signal: AbortSignal | undefined): Promise<readonly Row[]> {
    const values = () => [
      this.#calls.nowMs,
      ...this.#turns.values(request),
      request.leaseMs,
      textValue(request.token),
      this.#watcher?.isHearingMessages === true ? WAIT_MS : null,
    ]
    for (let tries = 1; ; tries++) {
      try {
        return await this.#calls.send('claim messages', CLAIM_MESSAGES, values, signal)
      } catch (error) {
        if (!isUniqueViolation(error) || tries === CLAIM_TRIES_MAX) throw error
      }
    }
  }

  /** Returns which messages the database changed. A text that is no UUID is the id of none. */
  async #sendFor<Item extends MessageLease>(
    { operation, sql, values }: MessageCall<Item>,
    items: readonly Item[],
    signal: AbortSignal | undefined,
  ): Promise<boolean[]> {
    const known = items.filter(({ id }) => isUuid(id))
    if (known.length === 0) return items.map(() => false)
    const rows = await this.#calls.send(operation, sql, () => values(known), signal)
    const done = new Set(rows.map(([id]) => id))
    return items.map(({ id }) => done.has(id.toLowerCase()))
  }
}

function idOf({ id }: MessageLease): string {
  return id
}

function settleValues(settlements: readonly MessageSettlement[]): Value[] {
  const withError = (one: MessageSettlement) => one.kind === 'retry' || one.kind === 'dead'
  return [
    textArray(settlements.map(idOf)),
    textArray(settlements.map(({ token }) => token)),
    textArray(settlements.map(({ kind }) => kind)),
    textArray(settlements.map((one) => ('providerId' in one ? one.providerId : undefined))),
    textArray(settlements.map((one) => (withError(one) ? toErrorText(one.error) : undefined))),
    numberArray(settlements.map((one) => (one.kind === 'retry' ? one.delayMs : null))),
    textArray(settlements.map((one) => `${one.kind === 'dead' && one.blocks}`)),
  ]
}

/** In the order of the parameters of the function. */
function addLiterals(nowMs: number | null, message: NewMessage): string {
  return [
    numberLiteral(nowMs),
    `CAST(${textLiteral(message.id)} AS uuid)`,
    textLiteral(message.topic),
    textLiteral(message.tenant),
    textLiteral(message.key),
    textLiteral(message.partition),
    bytesLiteral(message.payload),
    numberLiteral(message.delayMs),
  ].join(', ')
}
