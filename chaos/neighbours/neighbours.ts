/** Sends the requests of the bad neighbours during the disruptions. */
import { setTimeout as sleep } from 'node:timers/promises'
import { countPending } from '../check/collect.ts'
import type { AcceptedKey } from '../check/facts.ts'
import type { ClientNode } from '../clients/client.ts'
import { httpClient } from '../clients/http-client.ts'
import type { Database } from '../system/database.ts'
import { FLOOD, HANGING, HANGING_PATH, SLOW_ACCOUNT, TELLING_PATH } from './names.ts'

export interface Neighbours {
  /** Requests of the flood that were answered with 202. */
  readonly accepted: readonly AcceptedKey[]
  /** Runs until `signal` aborts. */
  readonly run: (signal: AbortSignal) => Promise<void>
}

export interface NeighboursOptions {
  readonly database: Database
  readonly nodes: readonly ClientNode[]
  readonly seed: number
  /** Duration of the run: the work of a short run must also end. */
  readonly seconds: number
}

/** Waiting operations, which are refilled: the workers do about 12 of them in a second. */
const BACKLOG_PER_SECOND = 5
const BACKLOG_MAX = 500
/** The maximum of one run. */
const FLOOD_MAX = 50_000
const FLOOD_EVERY_MS = 500
const FLOOD_AT_ONCE = 8

/** More than twice the places of the reconcilers of both workers. */
const HANGING_MAX = 200
const HANGING_EVERY_MS = 200
const HANGING_AT_ONCE = 4
/** Messages per request, and requests: more than the places of the relays of both workers. */
const MESSAGES = 50
const MESSAGE_REQUESTS = 8
/** Timeout: neighbours do not wait for a slow node. */
const ANSWER_MS = 1_000

interface NeighbourRequest {
  readonly token: string
  readonly path: string
  readonly key: string
  readonly body: object
}

export function neighbours(options: NeighboursOptions): Neighbours {
  return new BadNeighbours(options)
}

class BadNeighbours implements Neighbours {
  readonly accepted: AcceptedKey[] = []
  readonly #options: NeighboursOptions
  /** Sockets separate from those of the other tenants. */
  readonly #http = httpClient()
  #flooded = 0
  #hung = 0
  #acceptedMessages = 0
  #sent = 0

  constructor(options: NeighboursOptions) {
    this.#options = options
  }

  async run(signal: AbortSignal): Promise<void> {
    try {
      const hanging = Array.from({ length: HANGING_AT_ONCE }, () => this.#hang(signal))
      await Promise.all([this.#flood(signal), ...hanging])
    } finally {
      this.#http.close()
    }
  }

  async #flood(signal: AbortSignal): Promise<void> {
    const { database, seconds } = this.#options
    const backlog = Math.min(BACKLOG_MAX, seconds * BACKLOG_PER_SECOND)
    while (!signal.aborted && this.#flooded < FLOOD_MAX) {
      // While the database is down, the flood waits for it.
      const pending = await countPending(database, FLOOD.name).catch(() => backlog)
      const left = { count: Math.min(backlog - pending, FLOOD_MAX - this.#flooded) }
      const senders = Array.from({ length: FLOOD_AT_ONCE }, () => this.#pour(left, signal))
      await Promise.all(senders)
      await pause(FLOOD_EVERY_MS, signal)
    }
  }

  async #pour(left: { count: number }, signal: AbortSignal): Promise<void> {
    while (left.count > 0 && !signal.aborted) {
      left.count--
      const number = ++this.#flooded
      const { name: tenant, token } = FLOOD
      const key = `flood-transfer-${this.#options.seed}-${number}`
      const body = { toAccount: `${SLOW_ACCOUNT}${number}`, amountCents: 100, currency: 'EUR' }
      const status = await this.#send({ token, path: '/transfers', key, body })
      if (status === 202) this.accepted.push({ tenant, key })
    }
  }

  async #hang(signal: AbortSignal): Promise<void> {
    const { token } = HANGING
    while (this.#hung < HANGING_MAX && !signal.aborted) {
      const number = ++this.#hung
      const key = `hanging-request-${this.#options.seed}-${number}`
      await this.#send({ token, path: HANGING_PATH, key, body: {} })
      // Until enough were accepted: the first requests may find the database down.
      if (this.#acceptedMessages < MESSAGE_REQUESTS) {
        const body = { count: MESSAGES }
        const status = await this.#send({ token, path: TELLING_PATH, key: `tell-${key}`, body })
        if (status === 202) this.#acceptedMessages++
      }
      await pause(HANGING_EVERY_MS, signal)
    }
  }

  /** Returns the status, or `undefined` if the answer was lost, which neighbours ignore. */
  async #send({ token, path, key, body }: NeighbourRequest): Promise<number | undefined> {
    const { nodes } = this.#options
    const outcome = await this.#http.send({
      port: nodes[this.#sent++ % nodes.length]!.port,
      method: 'POST',
      path,
      headers: {
        authorization: `Bearer ${token}`,
        'content-type': 'application/json',
        'idempotency-key': key,
      },
      body: JSON.stringify(body),
      timeoutMs: ANSWER_MS,
    })
    return outcome.kind === 'answer' ? outcome.status : undefined
  }
}

/** Never rejects: an aborted pause ends early. */
async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => undefined)
}
