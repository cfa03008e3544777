/** Sends what the bad neighbours ask for, for as long as things go wrong. */
import { setTimeout as sleep } from 'node:timers/promises'
import { countPending } from '../check/collect.ts'
import type { AcceptedKey } from '../check/facts.ts'
import type { ClientNode } from '../clients/client.ts'
import { httpClient } from '../clients/http-client.ts'
import type { Database } from '../system/database.ts'
import { FLOOD, HANGING, HANGING_PATH, SLOW_ACCOUNT, TELLING_PATH } from './names.ts'

export interface Neighbours {
  /** Work of the flood that was answered with 202. */
  readonly accepted: readonly AcceptedKey[]
  /** Until `signal` aborts. */
  readonly run: (signal: AbortSignal) => Promise<void>
}

export interface NeighboursOptions {
  readonly database: Database
  readonly nodes: readonly ClientNode[]
  readonly seed: number
  /** How long the run lasts: a short one must also come to its end. */
  readonly seconds: number
}

/** Operations that wait, and are refilled: the workers do about 12 of them in a second. */
const BACKLOG_PER_SECOND = 5
const BACKLOG_MAX = 500
/** Of one run, over all. */
const FLOOD_MAX = 50_000
const FLOOD_EVERY_MS = 500
const FLOOD_AT_ONCE = 8

/** Twice what the reconcilers of both workers have places for, and more, once these have begun. */
const HANGING_MAX = 200
const HANGING_EVERY_MS = 200
const HANGING_AT_ONCE = 4
/** Messages of one request, and requests: more than the relays of both workers have places for. */
const MESSAGES = 50
const TELLINGS = 8
/** They do not wait for a node that is slow to answer. */
const ANSWER_MS = 1_000

interface Asked {
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
  /** Sockets apart from those of the other tenants. */
  readonly #http = httpClient()
  #flooded = 0
  #hung = 0
  #told = 0
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
      const key = `flood-${this.#options.seed}-${number}`
      const body = { toAccount: `${SLOW_ACCOUNT}${number}`, amountCents: 100, currency: 'EUR' }
      const status = await this.#send({ token, path: '/transfers', key, body })
      if (status === 202) this.accepted.push({ tenant, key })
    }
  }

  async #hang(signal: AbortSignal): Promise<void> {
    const { token } = HANGING
    while (this.#hung < HANGING_MAX && !signal.aborted) {
      const number = ++this.#hung
      const key = `hanging-${this.#options.seed}-${number}`
      await this.#send({ token, path: HANGING_PATH, key, body: {} })
      // Until enough of them were accepted: the first ones may meet a database that is down.
      if (this.#told < TELLINGS) {
        const body = { count: MESSAGES }
        const status = await this.#send({ token, path: TELLING_PATH, key: `tell-${key}`, body })
        if (status === 202) this.#told++
      }
      await pause(HANGING_EVERY_MS, signal)
    }
  }

  /** The status; none where the answer was lost, which no neighbour cares about. */
  async #send({ token, path, key, body }: Asked): Promise<number | undefined> {
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

/** Never rejects: an aborted pause is over. */
async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => undefined)
}
